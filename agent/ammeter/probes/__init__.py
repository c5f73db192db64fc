"""The list of probes.

A probe measures one kind of signal. It subscribes to calls of the program and fills its columns when a step ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ammeter.probes.autocast import Autocast
from ammeter.probes.call_order.probe import Usage
from ammeter.probes.checkpoint.probe import Checkpoint
from ammeter.probes.collectives import Collectives
from ammeter.probes.evaluation import Evaluation
from ammeter.probes.gradients.probe import Gradients
from ammeter.probes.kernels.probe import Kernels
from ammeter.probes.kernels.recomputation import Recomputation
from ammeter.probes.learning_rates import LearningRates
from ammeter.probes.loss import Loss
from ammeter.probes.origin.probe import Origin
from ammeter.probes.own_scaling.hand_updates import HandUpdates
from ammeter.probes.own_scaling.probe import OwnScaling
from ammeter.probes.preparation import Preparation
from ammeter.probes.reduction import Reduction
from ammeter.probes.resources import Resources
from ammeter.probes.scaler import Scaler
from ammeter.probes.unfinished_step import UnfinishedStep
from ammeter.probes.user import User
from ammeter.probes.waits import Waits
from ammeter.probes.weights.dtypes import Census
from ammeter.probes.weights.probe import Weights
from ammeter.recording.context import ProbeKinds


class Handle(Protocol):
    """A subscription or patch. remove() undoes it and may be called twice."""

    def remove(self) -> None: ...


class Probe(Protocol):
    """The interface of a probe.

    attach() subscribes through `session` and returns the handles. The optional finish() fills a row after all its
    transfers have arrived.
    """

    name: str

    def attach(self, guard: Callable[[Callable[..., None]], Callable[..., None]]) -> list[Handle]: ...


ALL = ProbeKinds(
    signals=(
        Preparation,
        OwnScaling,
        HandUpdates,
        Loss,
        Autocast,
        Usage,
        Gradients,
        Collectives,
        Reduction,
        Waits,
        Scaler,
        LearningRates,
        Weights,
        Census,
        Checkpoint,
        Origin,
        Kernels,
        Recomputation,
        Evaluation,
        UnfinishedStep,
    ),
    resources=Resources,
    user=User,
)
"""In the order in which they attach and finish a row. Usage precedes Gradients, which needs its clipped optimizers;
Preparation precedes Census, which counts the state after it was loaded. OwnScaling precedes Loss, whose numbers it
unscales."""
