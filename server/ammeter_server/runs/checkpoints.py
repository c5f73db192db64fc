"""The last checkpoint of a run that was saved before a fault, and the command that continues from it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

RESUME_OPTIONS = frozenset(
    option
    for name in (
        "resume",
        "resume-from",
        "resume-from-checkpoint",
        "resume-path",
        "ckpt",
        "ckpt-path",
        "checkpoint",
        "checkpoint-path",
        "load",
        "load-checkpoint",
        "init-from",
    )
    for option in (f"--{name}", f"--{name.replace('-', '_')}")
)
"""Options whose value is the checkpoint to continue from, by the conventions of training programs."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that a run saved.

    Attributes:
        step: Of the run.
        missing: Parts that a resumed run needs and that it lacks.
        verified: Whether it was read back and found complete and finite.
    """

    path: str
    step: int
    time: int
    missing: list[str]
    verified: bool = False


@dataclass(frozen=True)
class CheckpointEvent:
    """An event `checkpoint.saved` or `checkpoint.verified`, at the step of the run."""

    name: str
    step: int
    time: int
    data: dict[str, Any]


def last_good(events: Iterable[CheckpointEvent], first_bad_step: int) -> SavedCheckpoint | None:
    """Returns the newest checkpoint with weights from before the fault; None without one.

    A path that was written again at or after that step, or failed to be read back, does not count.

    Args:
        events: Newest first.
    """
    replaced: set[str] = set()
    outcomes: dict[str, str] = {}
    for event in events:
        path = str(event.data.get("path") or "")
        if not path or path in replaced:
            continue
        if event.name == "checkpoint.verified":
            outcomes.setdefault(path, str(event.data.get("outcome")))
            continue
        if event.step >= first_bad_step or outcomes.get(path) == "failed":
            replaced.add(path)
        elif (event.data.get("contents") or {}).get("weights"):
            missing = [str(part) for part in event.data.get("missing") or ()]
            return SavedCheckpoint(path, event.step, event.time, missing, outcomes.get(path) == "passed")
    return None


def resume_command(command: str | None, path: str) -> str | None:
    """Returns the run's own command with this checkpoint as the value of its option for one.

    None if the command is unknown or has no such option: nothing is known then of how the program loads one.
    """
    try:
        words = shlex.split(command or "")
    except ValueError:  # it was cut
        return None
    for at, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option not in RESUME_OPTIONS:
            continue
        if equals:
            return shlex.join([*words[:at], f"{option}={path}", *words[at + 1 :]])
        if at + 1 < len(words) and not words[at + 1].startswith("-"):
            return shlex.join([*words[: at + 1], path, *words[at + 2 :]])
    return None
