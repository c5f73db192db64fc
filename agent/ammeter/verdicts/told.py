"""Verdicts that one event decides: a mistake in the order of calls is told once, with the line that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ammeter.block import View
from ammeter.verdicts.finding import Finding
from ammeter.verdicts.opened import Opened, changed
from ammeter.wire import Event

LONGEST = 120
MOST = 20
"""Characters of a text and members of a list that the state keeps of an event's data."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """The state of such a verdict. data: of the event that decided it."""

    opened: Opened = Opened()
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
    return Told(state.opened.at(first, event.step), {name: kept(value) for name, value in event.data.items()})


def kept(value: Any) -> Any:
    """As much of a member of an event's data as a state has room for."""
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, list):
        return [kept(each) for each in value[:MOST]]
    if isinstance(value, dict):
        return {kept(name): kept(each) for name, each in list(value.items())[:MOST]}
    return value
