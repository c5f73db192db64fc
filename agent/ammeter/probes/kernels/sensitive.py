"""Reports operators whose error in half precision is large, from the references of censuses.

An error is reported after two censuses have measured it. The second one is requested for the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ammeter.probes.kernels.float32_reference import Measured
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.call_site import Spot

if TYPE_CHECKING:
    from ammeter.recording.row import Row

MIN_ERROR = 0.005
"""Relative error below which an operator is not reported: a few roundings to bfloat16, of 0.4 % at most."""

MIN_CENSUSES = 2
"""Censuses with such an error. One alone may be due to its batch."""

MIN_GROWTH = 2.0
"""An operator is reported again when its error has grown by this factor."""

MAX_OPERATORS = 16
"""Operators that are reported in a run."""

Place = tuple[str, "Spot | None"]


class Error(msgspec.Struct):
    """The errors of the operator of one line.

    Attributes:
        censuses: censuses with an error of at least MIN_ERROR.
        confirmed: the largest error that two censuses have reached.
        reported: the error in the last event.
    """

    first_step: int
    censuses: int = 0
    largest: float = 0.0
    confirmed: float = 0.0
    reported: float = 0.0


class SensitiveOperators:
    """The errors of sensitive operators so far.

    Attributes:
        is_open: whether an error waits for the census that confirms it.
    """

    def __init__(self) -> None:
        self._errors: dict[Place, Error] = {}
        self.is_open = False
        self._is_first = True

    def is_wanted(self, is_due: bool) -> bool:
        """Whether the next census needs references: the first one, one that is due, or one that confirms an error."""
        return self._is_first or is_due or self.is_open

    def judge(self, row: Row, measured: Sequence[Measured]) -> None:
        """Adds the errors of a step to its row, once a second census has confirmed them."""
        self._is_first = self.is_open = False
        worst: dict[Place, tuple[float, Measured]] = {}
        for one in measured:
            difference, size = (float(norm) for norm in one.norms.array())
            error = difference / size if size > 0 else 0.0
            place = (one.op, one.spot)
            if MIN_ERROR <= error < float("inf") and error > worst.get(place, (0.0, one))[0]:
                worst[place] = error, one
        for place, (error, one) in worst.items():
            self._note(row, place, error, one)

    def _note(self, row: Row, place: Place, error: float, one: Measured) -> None:
        if place not in self._errors and len(self._errors) >= MAX_OPERATORS:
            return
        known = self._errors.setdefault(place, Error(row.step))
        known.censuses += 1
        known.confirmed = max(known.confirmed, min(known.largest, error))
        known.largest = max(known.largest, error)
        if known.censuses < MIN_CENSUSES:
            self.is_open = True
        elif known.confirmed >= MIN_GROWTH * known.reported and known.confirmed > 0:
            known.reported = known.confirmed
            row.events.append(("kernels.sensitive", _data(one, known)))


def _data(one: Measured, known: Error) -> dict[str, Any]:
    rounded = one.rounded
    return {
        "op": one.op,
        "module": one.module,
        "caller": call_site.written(one.spot),
        "error": known.confirmed,
        "positions": one.is_positions,
        "dtype": str(rounded.dtype).removeprefix("torch."),
        "rounded_op": rounded.op,
        "rounded_at": call_site.written(rounded.spot),
        "first_step": known.first_step,
    }
