"""A peer: a tool whose cost for a training is measured. Ammeter is one; so is the peer that does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from bench.agent.training import Training

NOT_PROVIDED = "–"


@dataclass(frozen=True)
class Coverage:
    """When a peer provides gradient norms, full statistics, the place of a NaN, and the loss scale."""

    norms: str = NOT_PROVIDED
    statistics: str = NOT_PROVIDED
    place: str = NOT_PROVIDED
    scale: str = NOT_PROVIDED


class Peer:
    """Attached to one training.

    Attributes:
        own_model: Whether it needs a model of its own, because it cannot be detached.
        period: Steps from one of its expensive steps to the next.
    """

    name: str
    coverage = Coverage()
    own_model = False
    period = 1

    def __init__(self, training: Training, folder: Path) -> None:
        """Prepares the peer.

        Args:
            folder: An empty folder for its files.

        Raises:
            ImportError: The package that it needs is not installed.
        """
        self.training = training

    def attach(self) -> None: ...

    def detach(self) -> None: ...

    def on_gradients(self) -> None:
        """Runs between clipping and the optimizer's step."""

    def on_step_end(self, loss: torch.Tensor) -> None:
        """Runs after the step."""

    def close(self) -> dict[str, float]:
        """Ends the peer. Returns the figures that it reports about itself."""
        return {}


class Nothing(Peer):
    """The same training on both sides: its ratio shows how far from 1 chance alone leads."""

    name = "nothing (how much the measurement itself wavers)"
