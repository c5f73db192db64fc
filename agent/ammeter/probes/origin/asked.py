"""Carries out directives: hooks on every module, and trials of operators, in the steps that a person asked for.

The answers contain what was read, also if nothing was found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ammeter.probes.origin import culprit
from ammeter.probes.origin.gradient_origin import GradientOrigin
from ammeter.probes.origin.hook_windows import HookWindows
from ammeter.recording.directives.request import Arm, Request

if TYPE_CHECKING:
    from ammeter.probes.origin.visits import Visits
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

ORIGIN, TRIAL = "origin", "trial"

MAX_ORIGINS = 3
"""Origins of bad steps in one answer."""

_PLACE = ("kind", "module", "tensor", "input", "op", "direction", "dtype", "line", "caller", "confidence")
_TRIED = ("reason", "trial", "exact", "absmax", "reproducer")


class Asked:
    """The requests of one session for the origin of NaN and Inf."""

    def __init__(self, session: ProbeContext, windows: HookWindows, gradient_origin: GradientOrigin) -> None:
        self._session = session
        self._windows = windows
        self._gradient_origin = gradient_origin

    def subscribe(self, probe: str, guard: Callable[..., Any], forget: Callable[[], None]) -> None:
        """Accepts directives from now on.

        Args:
            guard: makes callbacks of the probe safe.
            forget: lets origins be reported again that were reported before.
        """
        self._guard, self._forget = guard, forget
        directives = self._session.directives
        directives.subscribe(ORIGIN, Arm(probe, begin=self._begin_window))
        directives.subscribe(TRIAL, Arm(probe, begin=self._begin_trial, end=self._end_trial))

    def compiled(self, step: int) -> None:
        """Notes that a step has a forward pass whose modules can have no hooks."""
        window = self._session.directives.current(ORIGIN, step)
        if window is not None and not window.read_steps:
            window.facts["reason"] = "compiled"

    def found(self, row: Row, visits: Visits | None, bad: bool, origin: dict[str, Any] | None) -> None:
        """Adds what is known of a step to the answers.

        Args:
            visits: the modules that had hooks.
            bad: whether the loss or a gradient was not finite, or the step was skipped.
            origin: the origin of a bad step.
        """
        window = self._session.directives.current(ORIGIN, row.step)
        trial = self._session.directives.current(TRIAL, row.step)
        if window is not None:
            self._add_window(window, visits, bad, origin)
        if trial is not None:
            trial.read_steps += 1
            if bad:
                trial.count("bad_steps")
                trial.facts |= _some(origin, (*_PLACE, *_TRIED))
                if trial.facts.get("trial"):
                    trial.end(row.step)

    def _begin_window(self, request: Request) -> str:
        self._windows.open(request.first, request.last)
        self._session.governor.norm_schedule.read_until(request.last)
        self._forget()
        request.facts |= {"bad_steps": 0, "modules": 0}
        return ""

    def _add_window(self, request: Request, visits: Visits | None, bad: bool, origin: dict[str, Any] | None) -> None:
        facts = request.facts
        if visits is not None and visits.visits:
            request.read_steps += 1
            facts["modules"] = max(facts["modules"], len({visit.module for visit in visits.visits}))
            largest = culprit.largest(visits)
            if largest["absmax"] > facts.get("largest", {}).get("absmax", 0.0):
                facts["largest"] = largest
            facts.pop("reason", None)
        elif not request.read_steps:
            facts.setdefault("reason", "unheard")
        if bad:
            request.count("bad_steps")
            place = _some(origin, _PLACE)
            if place and place not in facts.setdefault("origins", []) and len(facts["origins"]) < MAX_ORIGINS:
                facts["origins"].append(place)

    def _begin_trial(self, request: Request) -> str:
        """Accepts trials of losses and gradients on the host; others would make the program wait for its device."""
        if not any(tensor.is_cpu for _, tensor in self._session.watched.alive()):
            return "device"
        self._session.governor.norm_schedule.read_until(request.last)
        self._gradient_origin.arm_always(self._guard)
        self._forget()
        request.facts |= {"bad_steps": 0}
        return ""

    def _end_trial(self, _: Request) -> None:
        self._gradient_origin.arm_as_usual()


def _some(origin: dict[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: origin[name] for name in names if origin.get(name) not in (None, "")} if origin else {}
