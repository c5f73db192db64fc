"""Programs whose calls no patch or hook observes: their rows are those of the same program with observed calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import Variable

import ammeter
from ammeter.wire.columns import View
from tests.agent.training import events, stream

# Taken before anything is watched, as by a program with `from torch.autograd import backward`.
BACKWARD = torch.autograd.backward
SCALE, STEP, UPDATE = (getattr(torch.amp.GradScaler, name) for name in ("scale", "step", "update"))


class Direct(torch.optim.SGD):
    """An optimizer whose step() torch does not wrap."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        weight -= group["lr"] * weight.grad

    step.hooked = True  # type: ignore[attr-defined]


class Kernel(torch.optim.AdamW):
    """One whose kernel changes no version of a weight."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, lr=lr, fused=True)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.optim.AdamW.step.__wrapped__(self)  # type: ignore[attr-defined]

    step.hooked = True  # type: ignore[attr-defined]


def engine(loss: torch.Tensor) -> None:
    """backward() without any function of torch.autograd."""
    run: Any = Variable._execution_engine.run_backward
    run((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)


def train(
    folder: Path | None,
    *,
    optimizer: type = torch.optim.SGD,
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
    scaler: bool = False,
    micro: int = 1,
    overflow: int = 12,
    **calls: Any,
) -> tuple[View | None, dict[str, torch.Tensor]]:
    """Trains 24 steps, of which one overflows with a scaler; returns rows, if watched, and weights."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    chosen = optimizer(model.parameters(), lr=0.01)
    scales = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5) if scaler else None
    run = ammeter.watch(model, chosen, scales, dir=folder, budget=1.0) if folder else None
    for step in range(24):
        for weight in model.parameters():
            weight.grad = None
        for _ in range(micro):
            loss = model(torch.randn(16, 4)).square().mean()
            loss = loss * float("inf") if scales and step == overflow else loss
            backward(calls.get("scale", torch.amp.GradScaler.scale)(scales, loss) if scales else loss)
        if scales:
            calls.get("step", torch.amp.GradScaler.step)(scales, chosen)
            calls.get("update", torch.amp.GradScaler.update)(scales)
        else:
            chosen.step()
    if run is None or folder is None:
        return None, model.state_dict()
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows, model.state_dict()


UNOBSERVED: dict[str, dict[str, Any]] = {
    "optimizer": {"optimizer": Direct},
    "optimizer with a scaler": {"optimizer": Direct, "scaler": True},
    "micro-batches of an optimizer": {"optimizer": Direct, "micro": 3},
    "fused kernel": {"optimizer": Kernel},
    "backward": {"backward": BACKWARD},
    "micro-batches of backward": {"backward": BACKWARD, "micro": 3},
    "engine": {"backward": engine},
    "engine with a scaler": {"backward": engine, "scaler": True},
    "overflow soon after the search": {"backward": engine, "scaler": True, "overflow": 4},
    "scale": {"scaler": True, "scale": SCALE},
    "step": {"scaler": True, "step": STEP},
    "update": {"scaler": True, "update": UPDATE},
}

OBSERVED = {Direct: torch.optim.SGD, Kernel: lambda weights, lr: torch.optim.AdamW(weights, lr=lr, fused=True)}

LEARNED_STEPS = 3
"""Steps after which unobserved backward passes are found."""


@pytest.mark.parametrize("name", UNOBSERVED)
def test_steps_losses_and_scales_are_those_of_observed_calls(tmp_path: Path, name: str) -> None:
    options = UNOBSERVED[name]
    kept = {key: value for key, value in options.items() if key in ("micro", "scaler", "overflow")}
    usual = OBSERVED.get(options.get("optimizer"), torch.optim.SGD)  # type: ignore[arg-type]
    expected, _ = train(tmp_path / "observed", optimizer=usual, **kept)  # type: ignore[arg-type]
    found, _ = train(tmp_path / "unobserved", **options)
    assert expected is not None
    assert found is not None
    assert 24 == len(found.steps) == len(expected.steps)
    for column in (
        "applied",
        "skipped",
        "loss",
        "micro_batches",
        *(["scale", "found_inf"] if kept.get("scaler") else []),
    ):
        after = LEARNED_STEPS if column in ("loss", "micro_batches") and "backward" in options else 0
        one, other = expected.scalar(column)[after:], found.scalar(column)[after:]
        if name.startswith("engine") and "scaler" not in options and column == "loss":
            continue  # the engine's own arguments are out of reach, so the loss is the model's output here
        np.testing.assert_allclose(other, one, rtol=1e-5, err_msg=column)


@pytest.mark.parametrize("name", UNOBSERVED)
def test_weights_are_those_of_an_unwatched_program(tmp_path: Path, name: str) -> None:
    _, bare = train(None, **UNOBSERVED[name])
    _, watched = train(tmp_path, **UNOBSERVED[name])
    assert all(torch.equal(weight, watched[key]) for key, weight in bare.items())


def test_norms_are_read_of_an_optimizer_without_hooks(tmp_path: Path) -> None:
    found, _ = train(tmp_path, optimizer=Direct)
    assert found is not None
    assert np.isfinite(found.scalar("grad_norm")[2:]).any()
    assert np.isfinite(found.scalar("update_ratio")).any()
