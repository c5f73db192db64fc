"""What a fault is: spellings, each with its repaired text and a harmless look-alike, and what a report has to name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.wild.pieces import courses
from bench.wild.pieces.slots import PRECISIONS

Slots = Mapping[str, str]


@dataclass(frozen=True)
class Spelling:
    """One way to write a fault.

    Attributes:
        bad: Texts of the broken slots.
        good: Texts of the same slots in the repaired twin, where they are not those of every healthy program.
        alike: Texts that look like the fault and are harmless; None where there is no such text.
        code: Functions and classes that these texts use.
    """

    bad: Slots
    good: Slots = field(default_factory=dict)
    alike: Slots | None = None
    code: str = ""

    @property
    def slots(self) -> set[str]:
        """The slots that it or its healthy programs change."""
        return {*self.bad, *self.good, *(self.alike or {})}


@dataclass(frozen=True)
class Fault:
    """A fault and the programs that can have it.

    Attributes:
        accepted: Verdicts that name it.
        related: Verdicts that notice something of it, such as a consequence.
        place: "line" if a right line is part of a good finding, "module" if the module with the fault is, "weight" if
            the first weight with NaN or Inf is, else "".
        place_slots: Further slots whose lines are right, such as the one that uses what the fault left.
        clips: The clips that such a program may have, "" for none; empty if it may have any.
        numbers_change: False for a fault that costs time or shows after the run; the oracle then proves nothing.
        ends: Whether the program fails or dies of it.
    """

    accepted: tuple[str, ...]
    spellings: Mapping[str, Spelling]
    related: tuple[str, ...] = ()
    precisions: tuple[str, ...] = PRECISIONS
    courses: tuple[str, ...] = courses.ALL
    styles: tuple[str, ...] = ()
    without_styles: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    place: str = ""
    place_slots: tuple[str, ...] = ()
    clips: tuple[str, ...] = ()
    numbers_change: bool = True
    ends: bool = False
