"""Reads the directives of a stream once a second, hands them to probes, and writes the answers.

Each directive is answered by an event, also where nothing was found: `directive.done` or `directive.refused`. Steps
with a requested reading do not use the fast path. The number and the total cost of the requests of a run are limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ammeter.journal.directives import Directives
from ammeter.recording.directives.request import Arm, Request

if TYPE_CHECKING:
    from ammeter.recording.row import Row
    from ammeter.recording.session import Session

MAX_STEPS = 100
"""Steps that one request covers."""

MAX_REQUESTS = 100
"""Requests that a run accepts."""

MAX_SECONDS = 1.0
"""Time in Ammeter after which a request ends early: hooks on every module of a very large model take long."""

MAX_ALL_SECONDS = 30.0
"""Time in Ammeter of all requests after which a run accepts no more."""

MAX_ID_CHARS = 64
MAX_KNOWN = 1_000
"""Directives of a run that are remembered; a run takes no more."""

MAX_REFUSALS = 100
"""Refusals that a run reports."""


class Inbox:
    """The directives of one session."""

    name = "directives"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reader = Directives(session.journal.folder)
        self._arms: dict[str, Arm] = {}
        self._requests: dict[str, Request] = {}
        """arm -> the request that is carried out."""
        self._known: set[str] = set()
        self._accepted = self._refused = 0
        self._seconds = 0.0

    def subscribe(self, name: str, arm: Arm) -> None:
        """Makes a probe carry out the directives of this name."""
        self._arms[name] = arm

    def current(self, name: str, step: int) -> Request | None:
        """Returns the request for this reading that covers the step."""
        request = self._requests.get(name) if self._requests else None
        return request if request is not None and request.covers(step) else None

    def poll(self) -> None:
        """Begins the requests that have arrived, with the next step that is observed as a whole. Never raises."""
        try:
            row = self._session.row
            if row.began >= self._reader.due and self.name not in self._session.faults:
                first = row.step + self._session.fast_path.active  # whose forward pass may have run unobserved
                for directive in self._reader.poll():
                    self._take(directive, first)
            if self._requests and any(request.last >= row.step for request in self._requests.values()):
                self._session.fast_path.avoid(2)
        except Exception as error:  # noqa: BLE001 - as in guard
            self._session.record_fault(self.name, error)

    def finish(self, row: Row) -> None:
        """Adds a row to the requests that cover it, and answers those that end with it."""
        for name, request in list(self._requests.items()):
            if request.covers(row.step):
                self._add(request, row)
            if row.step >= request.last:
                del self._requests[name]
                row.events.append(("directive.done", self._answer(request)))

    def close(self) -> None:
        """Answers what is still open when the run ends."""
        for request in self._requests.values():
            request.facts.setdefault("reason", "ended")
            self._session.emit("directive.done", self._answer(request))
        self._requests.clear()

    def _take(self, directive: dict[str, Any], step: int) -> None:
        name, steps, key = directive.get("arm"), directive.get("steps", 1), directive.get("id", "")
        if not isinstance(name, str) or type(steps) is not int or not isinstance(key, str):
            return
        key = key[:MAX_ID_CHARS]
        if key in self._known or len(self._known) >= MAX_KNOWN:
            return
        if key:
            self._known.add(key)
        request = Request(key, name, step, step + min(max(1, steps), MAX_STEPS) - 1)
        reason = self._refusal(name) or self._begin(request)
        if not reason:
            self._accepted += 1
            self._requests[name] = request
        elif self._refused < MAX_REFUSALS:
            self._refused += 1
            data = {"id": request.id, "arm": name[:MAX_ID_CHARS], "reason": reason}
            self._session.emit("directive.refused", data)

    def _refusal(self, name: str) -> str:
        arm = self._arms.get(name)
        if arm is None:
            return "unknown"
        if arm.probe in self._session.faults:
            return "failed"
        if name in self._requests:
            return "busy"
        return "limit" if self._accepted >= MAX_REQUESTS or self._seconds >= MAX_ALL_SECONDS else ""

    def _begin(self, request: Request) -> str:
        arm = self._arms[request.arm]
        try:
            return arm.begin(request)
        except Exception as error:  # noqa: BLE001 - as in guard
            self._session.record_fault(arm.probe, error)
            return "failed"

    def _add(self, request: Request, row: Row) -> None:
        arm, cost = self._arms[request.arm], row.scalars.get("overhead_seconds", 0.0)
        request.covered_steps += 1
        request.seconds += cost
        request.step_seconds += row.scalars.get("step_seconds", 0.0)
        self._seconds += cost
        if arm.probe not in self._session.faults:
            try:
                arm.add(request, row)
            except Exception as error:  # noqa: BLE001 - as in guard
                self._session.record_fault(arm.probe, error)
        if request.seconds >= MAX_SECONDS and row.step < request.last:
            request.facts["reason"] = "cost"
            request.end(row.step)

    def _answer(self, request: Request) -> dict[str, Any]:
        arm = self._arms[request.arm]
        try:
            arm.end(request)
        except Exception as error:  # noqa: BLE001 - as in guard
            self._session.record_fault(arm.probe, error)
        if arm.probe in self._session.faults:
            request.facts["reason"] = "failed"
        return request.answer()
