"""Compares two checkouts of this repository: how to run their code, and what counts as slower.

"before" is the other checkout, "after" this one. "control" is the other checkout a second time: the ratio of control to
before shows the error of the measurement.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.common.paths import ROOT
from bench.common.tables import Row

BEFORE, CONTROL, AFTER = "before", "control", "after"
MIN_REPEATS = 4
"""Repeats below which no conclusion is drawn: too few to tell a difference from chance."""

HEADINGS = ("figure", "before", "after", "after / before", "control / before")


class CheckoutError(Exception):
    """The other checkout cannot be measured."""


@dataclass(frozen=True)
class Checkout:
    path: Path

    @classmethod
    def at(cls, path: Path) -> Checkout:
        """Raises CheckoutError where the folder is no checkout whose code can run here."""
        path = path.resolve()
        if not (path / "agent" / "ammeter").is_dir():
            raise CheckoutError(f"{path} has no agent/ammeter; name the root of a checkout of this repository")
        if _compiled(ROOT) and not _compiled(path):
            raise CheckoutError(
                f"{path} has no compiled library in agent/ammeter, and this checkout has one: the comparison would be"
                f" unfair. Build it: pip install -e {path / 'agent'} in a virtual environment of its own"
            )
        return cls(path)

    def environment(self) -> dict[str, str]:
        """Variables under which this interpreter imports the agent and the server of this checkout."""
        folders = (self.path / "agent", self.path / "server", ROOT)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
        return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, folders))}

    def __str__(self) -> str:
        command = ["git", "-C", str(self.path), "describe", "--always", "--dirty"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        return f"{self.path} ({commit or 'no commit'})"


def _compiled(root: Path) -> bool:
    return any((root / "agent" / "ammeter").rglob("*.so"))


@dataclass
class Figure:
    """One measured quantity of the three sides, one value per repeat; less is better."""

    name: str
    unit: str
    before: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def add(self, before: float, control: float, after: float) -> None:
        self.before.append(before)
        self.control.append(control)
        self.after.append(after)

    @property
    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def control_ratios(self) -> list[float]:
        return [control / before for before, control in zip(self.before, self.control, strict=True)]

    @property
    def is_slower(self) -> bool:
        """Whether all repeats but one exceed every control; by chance 1 of 40 comparisons with 5 repeats does."""
        if len(self.ratios) < MIN_REPEATS:
            return False
        return sorted(self.ratios)[1] > max(self.control_ratios)

    @property
    def row(self) -> Row:
        return (
            f"{self.name}, {self.unit}",
            f"{median(self.before):.4g}",
            f"{median(self.after):.4g}",
            _spread(self.ratios),
            _spread(self.control_ratios),
        )


def _spread(ratios: Sequence[float]) -> str:
    """Median, minimum and maximum of the repeats."""
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def conclusion(figures: Sequence[Figure]) -> str:
    repeats = min(len(figure.before) for figure in figures)
    if repeats < MIN_REPEATS:
        return f"no conclusion from {repeats} repeats; {MIN_REPEATS} are needed"
    slower = [figure.name for figure in figures if figure.is_slower]
    return f"slower: {'; '.join(slower)}" if slower else f"no slower in any of {len(figures)} figures"
