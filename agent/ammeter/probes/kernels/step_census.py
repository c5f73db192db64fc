"""Collects the censuses of one step: one for the first training call of each watched model."""

from __future__ import annotations

import torch

from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.float32_reference import Measured, References
from ammeter.probes.kernels.forward_call import ForwardCall

HOOK_SECONDS = 1.5e-6
"""Cost of one call of a hook on a module, charged to the budget; the census does not measure it."""

MAX_CALLS = 64
"""Calls that are counted in one step: a program may call each layer by itself."""


class StepCensus:
    """The censuses of one step.

    Attributes:
        calls: censuses of the calls that have returned.
        measured: the errors of sensitive operators in them; None if this step has no references.
        duration: seconds of these calls.
        cost_seconds: overhead of the censuses, with that of the hooks.
        backward: the census of its backward pass, and the duration of it in seconds.
        is_asked: whether a directive asked for it, so that it leaves no debt in the budget.
    """

    def __init__(self, *, with_references: bool, is_asked: bool = False) -> None:
        self.is_asked = is_asked
        self.calls: list[Census] = []
        self.duration = self.cost_seconds = 0.0
        self.measured: list[Measured] | None = [] if with_references else None
        self.backward: tuple[Census, float] | None = None
        self._called: set[int] = set()
        self._seconds = 0.0

    @property
    def is_complete(self) -> bool:
        return all(census.is_complete for census in self.calls)

    @property
    def censuses(self) -> list[Census]:
        """The censuses of the forward calls, and that of the backward pass."""
        return self.calls if self.backward is None else [*self.calls, self.backward[0]]

    @property
    def is_region(self) -> bool:
        return any(census.is_region for census in self.calls)

    def is_first_call(self, model: torch.nn.Module) -> bool:
        """Whether a call of this model is to be counted; marks the model as called."""
        if id(model) in self._called or len(self._called) >= MAX_CALLS:
            return False
        self._called.add(id(model))
        return True

    def begin(self) -> Census:
        """Returns a census for the next call. All of them share the time that one may take."""
        census = Census(None if self.measured is None else References())
        census.seconds = self._seconds
        return census

    def add(self, call: ForwardCall, *, has_raised: bool) -> float:
        """Adds a call that has ended and returns its overhead in seconds.

        Raises:
            Exception: what went wrong in the census.
        """
        census = call.census
        seconds = census.seconds - self._seconds
        self._seconds = census.seconds
        if census.references is not None:
            seconds += census.references.seconds
        self.cost_seconds += seconds + 2 * call.module_count * HOOK_SECONDS
        if not has_raised:
            self.duration += call.seconds
            self.calls.append(census)
            if self.measured is not None and census.references is not None:
                self.measured += census.references.measured
        return seconds

    def read_durations(self) -> float:
        """Reads the times of operators on a device, which have arrived. Returns the seconds that this took."""
        return sum(census.durations.read() for census in self.censuses if not census.durations.on_host)
