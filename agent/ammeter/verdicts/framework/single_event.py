"""Verdicts that one event decides: a mistake in the order of calls is told once, with the line that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed
from ammeter.wire.columns import View
from ammeter.wire.frames import Event

MAX_TEXT_CHARS = 120
MAX_ITEMS = 20
"""Characters of a text and members of a list that the state keeps of an event's data."""

MAX_PATH_CHARS = 400
"""Characters of a path, which is of no use in part."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """The state of such a verdict. data: of the event that decided it."""

    opened: Lifecycle = Lifecycle()
    data: dict[str, Any] = {}


Judge = Callable[[Told, View], tuple[Told, Finding | None]]


def told(
    event: str,
    conclude: Callable[[Told], Finding],
    *,
    decides: Callable[[dict[str, Any]], bool] = lambda _: True,
    again: bool = False,
) -> Judge:
    """The judge of a verdict that is reached by the first such event whose data decides it, and holds from then on.

    again: whether a later one takes its place, for events that come again with higher counts. The symptom's first step
    is the event's `first_step` where it has one.
    """

    def judge(state: Told, view: View) -> tuple[Told, Finding | None]:
        before = state
        for part in view.parts(event):
            if isinstance(part, Event) and part.name == event and (again or not state.opened.active):
                state = _heard(state, part) if decides(part.data) else state
        return state, changed(conclude, before, state)

    return judge


def _heard(state: Told, event: Event) -> Told:
    first = event.data.get("first_step", event.step)
    first = first if isinstance(first, int) and 0 <= first <= event.step else event.step
    data = {name: kept(value) for name, value in event.data.items()}
    return Told(state.opened.at(first, event.step), data | ({"path": path_in(event.data)} if "path" in data else {}))


def path_in(data: dict[str, Any]) -> str:
    """The path that an event speaks of, whole; of one that is longer than a state has room for, its end."""
    path = str(data.get("path") or "")
    return path if len(path) <= MAX_PATH_CHARS else f"…{path[1 - MAX_PATH_CHARS :]}"


def kept(value: Any) -> Any:
    """As much of a member of an event's data as a state has room for."""
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARS]
    if isinstance(value, list):
        return [kept(each) for each in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {kept(name): kept(each) for name, each in list(value.items())[:MAX_ITEMS]}
    return value
