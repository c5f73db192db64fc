"""The readings of one step that show the origin of its first NaN or Inf."""

from __future__ import annotations

from typing import Any

from ammeter.probes.origin import culprit, frontier
from ammeter.probes.origin.inputs import Argument, Inputs
from ammeter.probes.origin.visits import Visits


class StepReadings:
    """The inputs of one step, the visits of its modules, and those of a replay."""

    __slots__ = ("inputs", "last_of_window", "replayed", "visits", "was_read")

    def __init__(self) -> None:
        self.inputs = Inputs()
        self.visits: Visits | None = None
        self.replayed: Visits | None = None
        self.was_read = self.last_of_window = False

    def find_origin(
        self, nonfinite: dict[str, Any] | None, loss_is_finite: bool, backwards: int, usual: frozenset[Argument]
    ) -> dict[str, Any] | None:
        """Finds the origin in the inputs, else by hooks, by the replay or in the gradients.

        Args:
            nonfinite: the data of the step's event `gradient.nonfinite`.
            loss_is_finite: whether the step's loss was finite.
            backwards: backward passes of the step.
            usual: arguments of the model that were not finite in a good step.
        """
        origin = self.inputs.first_nonfinite(backwards, usual)
        for visits, confidence in ((self.visits, "hooks"), (self.replayed, "replay")):
            if origin is None and visits:
                visits.closed = True
                imputes = bool(usual)
                origin = culprit.find_origin(visits, confidence, loss_is_finite=loss_is_finite, imputes=imputes)
        if origin is None and nonfinite and loss_is_finite:
            origin = frontier.find_origin(nonfinite)
            if origin is None and self.visits:
                origin = frontier.last_nonfinite(nonfinite)
        return origin


def preferred(origin: dict[str, Any] | None, of_loss: dict[str, Any] | None) -> dict[str, Any] | None:
    """The origin in the graph of a loss if there is no other one, or if it is certain that no input made it."""
    if of_loss is None or origin is None:
        return of_loss or origin
    made_inside = of_loss.get("made_inside") and origin["kind"] == "input"
    return of_loss if made_inside or of_loss["reason"] == "targets" else origin  # which modules do not show
