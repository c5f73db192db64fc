"""Verdicts that one event decides, such as a mistake in the order of calls.

Each mistake is reported once, with the line of the program that makes it.
"""

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
"""Maximum characters of a text, and members of a list, in the state."""

MAX_PATH_CHARS = 400
"""Maximum characters of a path. The limit is high because an incomplete path is of no use."""


class SingleEventState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a single-event verdict.

    Attributes:
        data: Data of the event that decided it.
    """

    opened: Lifecycle = Lifecycle()
    data: dict[str, Any] = {}


Judge = Callable[[SingleEventState, View], tuple[SingleEventState, Finding | None]]


def judge_event(
    event: str,
    conclude: Callable[[SingleEventState], Finding],
    *,
    decides: Callable[[dict[str, Any]], bool] = lambda _: True,
    repeats: bool = False,
) -> Judge:
    """Returns the judge of a verdict that the first matching event opens permanently.

    The symptom's first step is the event's `first_step` if it has one.

    Args:
        event: Name of the event.
        conclude: Builds the finding from the state.
        decides: Whether the event's data open the verdict.
        repeats: Whether a later event replaces the data, for events that repeat with higher counts.
    """

    def judge(state: SingleEventState, view: View) -> tuple[SingleEventState, Finding | None]:
        before = state
        for part in view.parts(event):
            if isinstance(part, Event) and part.name == event and (repeats or not state.opened.active):
                state = _opened(state, part) if decides(part.data) else state
        return state, changed(conclude, before, state)

    return judge


def _opened(state: SingleEventState, event: Event) -> SingleEventState:
    first = event.data.get("first_step", event.step)
    first = first if isinstance(first, int) and 0 <= first <= event.step else event.step
    data = {name: truncated(value) for name, value in event.data.items()}
    return SingleEventState(
        state.opened.at(first, event.step), data | ({"path": path_of(event.data)} if "path" in data else {})
    )


def path_of(data: dict[str, Any]) -> str:
    """Returns the path of an event; of an overlong path, its end."""
    path = str(data.get("path") or "")
    return path if len(path) <= MAX_PATH_CHARS else f"…{path[1 - MAX_PATH_CHARS :]}"


def truncated(value: Any) -> Any:
    """Truncates a member of an event's data to the size limits of a state."""
    if isinstance(value, str):
        return value[:MAX_TEXT_CHARS]
    if isinstance(value, list):
        return [truncated(member) for member in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        return {truncated(name): truncated(member) for name, member in list(value.items())[:MAX_ITEMS]}
    return value
