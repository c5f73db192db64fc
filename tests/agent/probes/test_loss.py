"""A loss scale that the program applies itself is found in the graph of the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, events, stream, watching

Scaling = Callable[[torch.Tensor], torch.Tensor]


class Scaler:
    """A dynamic scaler as programs write it: halves at a bad step, doubles after good ones."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.scale


def seen(scaling: Scaling, folder: Path) -> list[dict[str, Any]]:
    """Trains with a scaled loss and returns the data of scaler.seen."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with watching(folder, model, optimizer) as watched:
        for _ in range(4):
            optimizer.zero_grad()
            scaling(model(torch.randn(8, 12)).square().mean()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [event.data for event in events(stream(watched.run, folder)[1], "scaler.seen")]


@pytest.mark.parametrize(
    "scaling",
    [
        Scaler(1024.0),
        lambda loss: 1024 * loss,
        lambda loss: loss.float().mul(torch.tensor(1024.0)),
        lambda loss: loss / 2**-10,
        lambda loss: (loss / 4) * 1024.0,
        lambda loss: loss * 1024 + loss * 0.1 * 1024,
    ],
    ids=["class", "integer", "tensor", "quotient", "micro-batch", "sum"],
)
def test_a_scale_of_the_programs_own_is_seen_once(scaling: Scaling, tmp_path: Path) -> None:
    assert [{"enabled": True, "scale": 1024.0, "own": True}] == seen(scaling, tmp_path)


@pytest.mark.parametrize(
    "scaling",
    [
        lambda loss: loss,
        lambda loss: loss / 4,
        lambda loss: 2 * loss,
        lambda loss: 100 * loss,
        lambda loss: loss / 1024,
    ],
    ids=["none", "micro-batch", "small", "weight", "divided"],
)
def test_other_factors_are_no_scale(scaling: Scaling, tmp_path: Path) -> None:
    assert [] == seen(scaling, tmp_path)
