"""The whole agent with everything on in every step: training is the same to the last bit, with one exception."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ammeter
from ammeter.probes.origin.hook_windows import HookWindows
from ammeter.recording.schedule.budget import Governor
from tests.agent.training import Model, events, stream

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=1e-2, momentum=0.9),
    "Adam, for each": lambda weights: torch.optim.Adam(weights, lr=1e-2, foreach=False),
    "AdamW, foreach": lambda weights: torch.optim.AdamW(weights, lr=1e-2, foreach=True),
    "AdamW, fused": lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=1e-3),
}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}
STEPS = 12
BAD = 5
"""The step whose input holds an Inf, so that a scaler skips it and the origin is asked for."""


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget, a window of the origin probe in every step, a census in every step."""
    made = Governor.__init__

    def unbounded(self: Governor, budget: float, preset: str = "default") -> None:
        made(self, budget, preset)
        for bucket in (self.norms, self.full, self.weights, self.kernels):
            bucket.share = bucket._level = math.inf
        self.attention.share = math.inf

    monkeypatch.setattr(Governor, "__init__", unbounded)
    monkeypatch.setattr(HookWindows, "is_on", lambda self, step: step % 2 == 0)


def train(
    precision: str, optimizer: str, accumulate: int, folder: Path | None, model: Any = Model, **options: Any
) -> tuple[list[bytes], str]:
    """(every bit that training leaves behind, the run's id)."""
    torch.manual_seed(3)
    net = model()
    steps = OPTIMIZERS[optimizer](net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4) if precision == "fp16" else None
    run = ammeter.watch(net, steps, scaler, dir=folder, **options) if folder else None
    dtype = DTYPES[precision]
    for step in range(STEPS):
        for _ in range(accumulate):
            batch = torch.randn(8, 12)
            if step == BAD and scaler:
                batch[3, 4] = math.inf
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = net(batch).float().square().mean() / accumulate
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(steps)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if scaler:
            scaler.step(steps)
            scaler.update()
        else:
            steps.step()
        steps.zero_grad()
    if run:
        run.close()
    tensors = [*net.state_dict().values(), *(value for state in steps.state.values() for value in state.values())]
    bits = [
        tensor.detach().contiguous().view(-1).numpy().tobytes()
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    ]
    scale = [repr(scaler.state_dict()).encode()] if scaler else []
    return [*bits, *scale, torch.get_rng_state().numpy().tobytes()], run.id if run else ""


@functools.cache
def bare(precision: str, optimizer: str, accumulate: int) -> list[bytes]:
    """Trained once for both presets."""
    return train(precision, optimizer, accumulate, None)[0]


@pytest.mark.parametrize("preset", ["default", "full"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", DTYPES)
def test_a_run_with_everything_read_in_every_step_ends_in_the_same_bits(
    precision: str, optimizer: str, accumulate: int, preset: str, tmp_path: Path, everything: None
) -> None:
    watched, run = train(precision, optimizer, accumulate, tmp_path, preset=preset, replay=True)
    assert bare(precision, optimizer, accumulate) == watched
    rows, frames = stream(run, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert STEPS == len(rows)
    assert (precision != "fp32" or preset == "full") == bool(events(frames, "kernels.census"))
    assert (precision == "fp16") == bool(events(frames, "origin.found"))


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The program's own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("preset", ["default", "full"])
def test_under_a_mode_and_a_profiler_of_the_program_it_is_the_same_and_they_see_the_program_only(
    preset: str, tmp_path: Path, everything: None
) -> None:
    found = []
    for folder in (None, tmp_path):
        with Mode() as mode, torch.profiler.profile() as profiled:
            bits, _ = train("fp16", "SGD", 1, folder, preset=preset, replay=True)
        names = sorted(event.name for event in profiled.events() if event.name.startswith("aten::"))
        found.append((bits, mode.seen, names if preset == "none" else []))
    assert found[0] == found[1]


@pytest.mark.parametrize("preset", ["default", "full"])
def test_a_compiled_model_ends_in_the_same_bits(preset: str, tmp_path: Path, everything: None) -> None:
    def model() -> Any:
        return torch.compile(Model(), backend="aot_eager")

    bare, _ = train("bf16", "SGD", 1, None, model)
    torch._dynamo.reset()
    watched, _ = train("bf16", "SGD", 1, tmp_path, model, preset=preset)
    assert bare == watched


class Product(torch.nn.Module):
    """Its backward pass branches on whether a dispatch mode is there: torch/csrc/autograd/FunctionsManual.cpp, prod."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (1 + self.first(x)).prod(1)
        return found


def test_the_gradient_of_a_product_is_the_one_exception_and_in_preset_full_only(
    tmp_path: Path, everything: None
) -> None:
    bare, _ = train("fp32", "SGD", 1, None, Product)
    assert bare == train("fp32", "SGD", 1, tmp_path / "default", Product)[0]
    full, _ = train("fp32", "SGD", 1, tmp_path / "full", Product, preset="full")
    assert bare != full
    for one, other in zip(bare[:-1], full[:-1], strict=True):
        a, b = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (one, other))
        torch.testing.assert_close(a, b)
