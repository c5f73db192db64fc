"""What is known of a run, by the steps that Ammeter counts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from bench.wild.oracle import Recording, Row
from bench.wild.program import Program

_LOSS_OF_LINE = re.compile(r"\bloss of [^\s:]+:(\d+)", re.IGNORECASE)
_RECORDED_LOSS = re.compile(r"__wild__\.step\([^,]+, ([^,]+),")


@dataclass(frozen=True)
class Truth:
    """What is known of a run.

    Attributes:
        symptom: The first step whose numbers differ from the twin's; None if none does or it does not matter.
        place: The module that has the fault, or ''.
        rank: The rank whose rows these are.
    """

    program: Program
    recording: Recording
    symptom: int | None = None
    place: str = ""
    rank: int = 0

    def of_rank(self, rank: int) -> Truth:
        """The truth of a finding with the numbers of one rank."""
        return replace(self, rank=rank) if rank != self.rank else self

    def without_place(self) -> Truth:
        """The truth for another verdict, which may rightly name another module."""
        return replace(self, place="")

    def rows(self, first: int, last: int) -> list[Row]:
        """Rows of the rank by Ammeter's steps, both included."""
        return self._rows_of(self._own, first, last)

    def other_rows(self, first: int, last: int) -> list[Row]:
        """The same rows of the other rank."""
        return self._rows_of(self._others, first, last)

    @property
    def last_step(self) -> int:
        return self._own[-1].step - self.program.first_watched if self._own else -1

    def is_skipped(self, row: Row) -> bool:
        """Whether no optimizer changed the weights in this step."""
        if row.applied is not None:
            return row.applied == 0
        return row.step in self._unchanged

    def may_be_applied(self, row: Row) -> bool:
        """Whether a step that may have been skipped may have been applied as well: its weights were NaN before."""
        return not row.applied and bool(row.bad_weights)

    def is_partly_skipped(self, row: Row) -> bool:
        """Whether an optimizer did not change its weights in this step."""
        if row.applied is not None:
            return row.applied < self._optimizers
        return row.step in self._unchanged

    def applied(self, first: int, last: int) -> int:
        """The number of steps that were applied."""
        return sum(not self.is_skipped(row) for row in self.rows(first, last))

    def is_of_other_loss(self, text: str) -> bool:
        """Whether a text names a loss by a line of the program that has not the recorded one, such as a penalty's."""
        recorded = _RECORDED_LOSS.search(self.program.recorded)
        if recorded is None:
            return False
        name = re.compile(rf"\b{re.escape(recorded[1].rpartition('.')[2])}\b")
        lines = dict(enumerate(self.program.text.splitlines(), 1))
        return any(not name.search(lines.get(int(line), "")) for line in _LOSS_OF_LINE.findall(text))

    def has_bad_gradients(self, row: Row) -> bool:
        return any(self.bad_gradients(row))

    def bad_gradients(self, row: Row) -> list[list[str]]:
        """Tensors with NaN or Inf in their gradients: after each backward, after the step, and of all ranks."""
        others = [name for other in self._others if other.step == row.step for name in other.bad_gradients]
        return [row.bad_gradients, row.bad_applied, *row.bad_earlier, sorted({*row.bad_gradients, *others})]

    def _rows_of(self, rows: list[Row], first: int, last: int) -> list[Row]:
        offset = self.program.first_watched
        return [row for row in rows if first <= row.step - offset <= last]

    @property
    def _own(self) -> list[Row]:
        return self.recording.other_rows if self.rank else self.recording.rows

    @property
    def _others(self) -> list[Row]:
        return self.recording.rows if self.rank else self.recording.other_rows

    @cached_property
    def _optimizers(self) -> int:
        return max((row.applied or 0 for row in self._own), default=0) or 1  # a run may skip all its steps

    @cached_property
    def _unchanged(self) -> set[int]:
        """Steps after which the weights were as before, or may have been: NaN stays NaN. The first is unknown."""
        same = {
            row.step
            for before, row in pairwise(self._own)
            if row.weights == before.weights or (row.bad_weights and before.bad_weights)
        }
        return same | {row.step for row in self._own[:1]}
