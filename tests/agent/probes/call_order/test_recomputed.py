"""Errors of checkpointing that recomputes in another dtype are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

from ammeter.probes.call_order.raised import problem_in
from ammeter.wire.frames import Event
from tests.agent.programs import start


class Recomputed(torch.nn.Module):
    """Enters autocast in its first pass only, when `recomputed` does not say otherwise."""

    def __init__(self, recomputed: Any) -> None:
        super().__init__()
        self.parts = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
        self.calls, self.recomputed = 0, recomputed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 1:
            return self.recomputed(self.parts, x)  # type: ignore[no-any-return]
        with torch.autocast("cpu", torch.bfloat16):
            return self.parts(x)  # type: ignore[no-any-return]


def checkpoint_error(recomputed: Any) -> str:
    x = torch.ones(2, 4, requires_grad=True)
    output = checkpoint(Recomputed(recomputed), x, use_reentrant=False)
    with pytest.raises(CheckpointError) as caught:
        output.float().sum().backward()
    return str(caught.value)


def test_checkpointing_that_recomputes_without_autocast_is_told_with_both_dtypes() -> None:
    message = checkpoint_error(lambda parts, x: parts(x))
    assert ("recomputed", ["bfloat16", "float32"]) == problem_in(message)


def test_checkpointing_that_recomputes_other_shapes_is_no_matter_of_precision() -> None:
    def shorter(parts: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return parts(x[:1])  # type: ignore[no-any-return]

    message = checkpoint_error(shorter)
    assert "different metadata" in message
    assert ("recomputed", []) == problem_in(message)


CHECKPOINT = """
from torch.utils.checkpoint import checkpoint

calls = []


def part(x):
    calls.append(x)
    with torch.autocast("cpu", torch.bfloat16, enabled=len(calls) == 1):
        return torch.nn.functional.gelu(model(x))


checkpoint(part, torch.ones(3, 4, requires_grad=True), use_reentrant=False).float().sum().backward()
"""


def test_the_line_of_backward_is_told_where_checkpointing_recomputes_in_another_dtype(tmp_path: Path) -> None:
    ended = start(CHECKPOINT, tmp_path).end()
    assert "different metadata" in ended.err
    (event,) = [event for event in ended.stream() if isinstance(event, Event) and event.name == "usage.unsupported_op"]
    assert ("recomputed", ["bfloat16", "float32"]) == (event.data["problem"], event.data["dtypes"])
    assert event.data["caller"].startswith("script.py:")
