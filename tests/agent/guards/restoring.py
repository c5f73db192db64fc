"""Runs whose checkpoints another process reads back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter import guards
from ammeter.recording import row_queue
from ammeter.wire.frames import Event
from tests.agent.guarded import Outcome, train
from tests.agent.training import events, stream


def whole(net: Any, optimizer: Any, scaler: Any) -> dict[str, Any]:
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(), "step": 1}


def saving(path: Path, what: Callable[..., Any], at: tuple[int, ...] = (4,)) -> Callable[..., None]:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step in at:
            torch.save(what(net, optimizer, scaler), path.with_name(path.name.replace("STEP", str(step))))

    return before


def verified(outcome: Outcome, folder: Path) -> list[dict[str, Any]]:
    found: list[Event] = events(stream(outcome.run, folder)[1], "checkpoint.verified")
    return [event.data for event in found]


def run(
    folder: Path,
    before: Callable[..., None],
    steps: int = 30,
    patient: bool = True,
    others: Sequence[Any] = (),
) -> tuple[Outcome, list[dict[str, Any]]]:
    """patient: each step begins when what was saved is read, however fast or busy the machine is."""
    guard = guards.Checkpoint(restore=True)

    def slowly(*args: Any) -> None:
        deadline = time.monotonic() + 90
        while patient and guard._restore_process and guard._restore_process._running and time.monotonic() < deadline:
            guard._restore_process.poll()
            time.sleep(0.02)
        before(*args)

    with pytest.MonkeyPatch.context() as patch:
        if patient:
            patch.setattr(row_queue, "BATCH_SECONDS", 0.0)  # the guard finds a file at the next step
        outcome = train(folder, [guard, *others], before=slowly, steps=steps)
    return outcome, verified(outcome, folder)
