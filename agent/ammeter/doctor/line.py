"""One line of the doctor's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warn", "fail"]
"""ok: works. note: a limit that needs no repair. warn: works, but can be improved. fail: does not work."""


@dataclass(frozen=True)
class Line:
    """about: the subject checked. text: the result. remedy: what to do, "" for nothing."""

    level: Level
    about: str
    text: str
    remedy: str = ""


def ok(about: str, text: str) -> Line:
    return Line("ok", about, text)


def warn(about: str, text: str, remedy: str) -> Line:
    return Line("warn", about, text, remedy)


def fail(about: str, text: str, remedy: str) -> Line:
    return Line("fail", about, text, remedy)
