from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import ammeter
from ammeter.probes.kernels import probe
from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.forward_call import ForwardCall
from ammeter.wire.columns import measured
from tests.agent.networks import NETWORKS, normal, train
from tests.agent.probes.kernels.networks import linear
from tests.agent.training import stream


@pytest.mark.parametrize("preset", ["default", "full"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_run_with_windows_ends_in_the_same_bits(name: str, dtype: Any, preset: str, tmp_path: Path) -> None:
    bare = train(NETWORKS[name], None, dtype=dtype)
    watched = train(NETWORKS[name], tmp_path, dtype=dtype, preset=preset)
    assert repr(bare.state) == repr(watched.state)
    assert measured(watched.rows.scalar("cast_bytes")).any()


@pytest.mark.parametrize("name", NETWORKS)
def test_with_the_preset_full_backward_is_counted_too(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    network.model.train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = network.loss()
    with FlopCounterMode(display=False) as counter:
        loss.backward()  # type: ignore[no-untyped-call]
    recorded = train(NETWORKS[name], tmp_path, preset="full")
    assert [("forward", True), ("backward", counter.get_total_flops())] == [
        (data["phase"], data["phase"] == "forward" or data["flops_eligible"]) for data in recorded.of("kernels.census")
    ]


class Unback(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        raise FloatingPointError("no way back")


def test_a_window_is_closed_when_backward_raises(tmp_path: Path) -> None:
    model = linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path, preset="full")
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 8)).sum()
        if step < 2:
            loss.backward()
        else:
            with pytest.raises(FloatingPointError):
                Unback.apply(loss).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert 0 == torch._C._len_torch_dispatch_stack()
    run.close()


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _steps(model: torch.nn.Module, folder: Path, *, step: Callable[[Any], None] | None = None) -> Any:
    """Six steps of a watched model; step does one of them its own way. Returns the frames."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=folder)

    def forward_and_back() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 8)).float().sum()
        loss.backward()

    try:
        for _ in range(6):
            optimizer.zero_grad()
            step(forward_and_back) if step else forward_and_back()
            optimizer.step()
    finally:
        run.close()
    _, frames = stream(run.id, folder)
    events = [(frame.name, frame.data) for frame in frames if type(frame).__name__ == "Event"]
    assert [] == [event for event in events if event[0] == "probe.failed"]
    return events


def test_beside_a_mode_or_a_profiler_of_the_program_no_window_is_opened(tmp_path: Path) -> None:
    def counted(forward: Callable[[], None]) -> None:
        with Counting():
            forward()

    def profiled(forward: Callable[[], None]) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            forward()

    for number, step in enumerate((counted, profiled)):
        recorded = _steps(linear(8, 8), tmp_path / str(number), step=step)
        assert [("kernels.blind", {"reason": "busy"})] == [entry for entry in recorded if entry[0].startswith("kernel")]


@pytest.mark.filterwarnings("ignore")
def test_of_a_compiled_model_it_is_told_that_it_cannot_be_counted(tmp_path: Path) -> None:
    torch._dynamo.reset()
    recorded = _steps(cast(torch.nn.Module, torch.compile(linear(8, 8), backend="eager")), tmp_path)
    torch._dynamo.reset()
    assert [("kernels.blind", {"reason": "compiled"})] == [entry for entry in recorded if entry[0].startswith("kernel")]


@pytest.mark.filterwarnings("ignore")
@torch._dynamo.config.patch(error_on_recompile=True)  # type: ignore[untyped-decorator]
def test_a_compiled_part_of_a_model_stays_compiled_in_a_window(tmp_path: Path) -> None:
    torch._dynamo.reset()
    ran: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        ran.append(0)
        return graph.forward

    part = cast(torch.nn.Module, torch.compile(linear(8, 8), backend=backend))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), part)
    recorded = _steps(model, tmp_path)
    torch._dynamo.reset()
    assert [0] == ran
    assert "kernels.census" in [event for event, _ in recorded]


class Raising(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.raises = torch.nn.Linear(8, 8), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if self.raises:
            raise FloatingPointError("out of range")
        return x


def test_a_window_is_closed_when_the_model_raises(tmp_path: Path) -> None:
    model = Raising()
    kinds: list[int] = []

    def step(forward: Callable[[], None]) -> None:
        if len(kinds) == 3:
            model.raises = False
        try:
            forward()
        except FloatingPointError:
            model.layer(torch.ones(1, 8)).sum().backward()
        kinds.append(torch._C._len_torch_dispatch_stack() + len(model.layer._forward_hooks))

    _steps(model, tmp_path, step=step)
    assert [0] * 6 == kinds


def test_what_goes_wrong_in_a_count_does_not_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(self: Census, *_: Any) -> None:
        raise ValueError("counted wrong")

    monkeypatch.setattr(Census, "_count_cast", wrong)
    with pytest.raises(AssertionError):  # the loop looks for faults
        train(normal, tmp_path)
    assert "its kernels probe failed and is switched off (ValueError: counted wrong" in caplog.text
    assert 0 == torch._C._len_torch_dispatch_stack()


def test_a_window_is_closed_when_the_probe_has_a_fault_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: ForwardCall, *_: Any) -> None:
        raise ValueError("entered wrong")

    monkeypatch.setattr(ForwardCall, "_entered", wrong)
    model = linear(8, 8)
    with pytest.raises(AssertionError):  # the loop looks for faults
        _steps(model, tmp_path)
    assert 0 == torch._C._len_torch_dispatch_stack()
    assert [0, 0] == [len(module._forward_hooks) for module in model.modules()]


def test_windows_are_bought_from_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    original = probe.Kernels._open

    def counted(self: probe.Kernels, model: torch.nn.Module, *more: Any) -> None:
        opened.append(0)
        original(self, model, *more)

    monkeypatch.setattr(probe.Kernels, "_open", counted)
    train(normal, tmp_path / "poor", steps=200, budget=0.001)
    poor = len(opened)
    opened.clear()
    train(normal, tmp_path / "light", steps=200, preset="light")
    assert 0 == len(opened)
    train(normal, tmp_path / "rich", steps=200, budget=1.0)
    assert 0 < poor < len(opened)
