"""Sets a symptom against the learning rate: what it was when the symptom began, and whether it had changed before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.lifecycle import Lifecycle
from ammeter.wire.columns import View

COLUMN = "optimizer_lr"

MIN_CHANGE = 1.1
"""Factor from which a change is kept: a schedule changes the rate a little in each step."""

LARGE_CHANGE = 1.5
"""Factor from which a change is stated: a symptom within a few steps of a smaller one is hardly due to it."""

WINDOW_STEPS = 100
"""Steps before a symptom in which a change is looked for: a fifth of a usual warm-up."""

KEPT_STEPS = 2000
"""Steps for which changes are kept. Verdicts state the first step of a symptom some hundred steps later at most."""

MAX_CHANGES = 48
"""Changes kept at most: a rate that grows by a factor of 100 changes 48 times by a tenth."""

MIN_STEADY_STEPS = 10
"""Steps for which readings must have been the same for a rate to be called steady."""

MAX_STEPS_SINCE_JUMP = 20
"""Steps within which a symptom of a few steps, such as a spike, may follow from a jump of the rate."""


class Stated(msgspec.Struct, frozen=True, array_like=True):
    """What is stated of one symptom.

    Attributes:
        first: the first step of the symptom.
        rate, step: the last change before the symptom; a step of -1 if no rate was read.
        other, other_step: the rate that is furthest from it in the steps before.
        is_jump: whether the rate changed from `other` at once, after it had been steady.
    """

    first: int = -1
    rate: float = math.nan
    step: int = -1
    other: float = math.nan
    other_step: int = -1
    is_jump: bool = False


class Rates(msgspec.Struct, frozen=True, array_like=True):
    """The learning rate of a stream: (step, rate) of its changes, and what was stated last."""

    changes: tuple[tuple[int, float], ...] = ()
    stated: Stated = Stated()

    def add(self, rows: View, after: int = -1, until: int | None = None) -> Rates:
        """Adds the changes in the rows of the steps after `after` and up to `until`."""
        if COLUMN not in rows.schema.places:
            return self
        numbers = rows.scalar(COLUMN)
        if len(numbers) == 1 and self.changes and _is_near(float(numbers[0]), self.changes[-1][1]):
            return self  # as below, with Python's numbers, which take a fraction of the time
        read = np.flatnonzero((numbers >= 0) & (rows.steps > after) & (until is None or rows.steps <= until))
        if not read.size or (self.changes and _is_near(numbers[read], self.changes[-1][1]).all()):
            return self
        changes = list(self.changes)
        for at in read:
            rate, step = float(numbers[at]), int(rows.steps[at])
            if changes and _is_near(rate, changes[-1][1]):
                continue
            changes.append((step, rate))
            while len(changes) > MAX_CHANGES or (len(changes) > 1 and changes[1][0] < step - KEPT_STEPS):
                del changes[0]
        return Rates(tuple(changes), self.stated)

    def at(self, opened: Lifecycle) -> Rates:
        """States the rate at the first step of a symptom."""
        return Rates(self.changes, _stated(self.changes, opened.first))


class State(Protocol):
    @property
    def opened(self) -> Lifecycle: ...
    @property
    def rates(self) -> Rates: ...


Judge = Callable[[Any, View], tuple[Any, Finding | None]]


def stating(
    judge: Judge,
    *,
    conclude: Callable[[Any], Finding] | None = None,
    matters: Callable[[Any], bool] = lambda _: True,
    jumps_only: bool = False,
) -> Judge:
    """Adds the learning rate to the findings of a verdict, whose state has `rates` and `opened`.

    Args:
        judge: The verdict's judge.
        conclude: Builds the finding from the state, if its own texts need the rate.
        matters: Whether the rate may be a reason, so that the cause states it; it is evidence in any case.
        jumps_only: Whether a gradual change, as in a warm-up, has nothing to do with the symptom.
    """

    def judged(state: State, view: View) -> tuple[Any, Finding | None]:
        after, finding = judge(state, view)
        rates, opened = state.rates, after.opened
        if opened.times and opened.first != rates.stated.first:  # by what was known when the verdict was reached
            rates = rates.add(view, until=opened.step).at(opened).add(view, after=opened.step)
        else:
            rates = rates.add(view)
        if rates is not after.rates:
            after = msgspec.structs.replace(after, rates=rates)
        if finding is None:
            return after, None
        finding = finding if conclude is None else conclude(after)
        return after, _with_rate(finding, rates.stated, is_stated=matters(after), jumps_only=jumps_only)

    return judged


stating_jumps = partial(stating, jumps_only=True)


def _is_near(rate: Any, other: float) -> Any:
    return (rate <= other * MIN_CHANGE) & (rate >= other / MIN_CHANGE)


def _stated(changes: tuple[tuple[int, float], ...], first: int) -> Stated:
    before = [change for change in changes if change[0] <= first]
    if not before:
        return Stated(first)
    step, rate = before[-1]
    window = list(_in_window(before, first))
    other_step, other = max(window, key=lambda change: _distance(change[1], rate))
    is_jump = len(before) > 1 and before[-2] == (other_step, other) and step - other_step >= MIN_STEADY_STEPS
    return Stated(first, rate, step, other, other_step, is_jump)


def _in_window(before: list[tuple[int, float]], first: int) -> Iterator[tuple[int, float]]:
    """The changes in the window, and the last one before it, whose rate its begin still had."""
    yield from (change for change in before if change[0] > first - WINDOW_STEPS)
    yield from [change for change in before if change[0] <= first - WINDOW_STEPS][-1:]


def _distance(rate: float, other: float) -> float:
    if rate == other:
        return 0.0
    return abs(math.log(rate / other)) if rate > 0 and other > 0 else math.inf


def _with_rate(finding: Finding, stated: Stated, *, is_stated: bool, jumps_only: bool) -> Finding:
    if stated.step < 0 or stated.first != finding.first_step:
        return finding
    evidence = {"learning_rate": stated.rate, "learning_rate_step": stated.step}
    if _distance(stated.other, stated.rate) >= math.log(LARGE_CHANGE):
        moved = "rose" if stated.rate > stated.other else "fell"
        begin = max(stated.other_step, finding.first_step - WINDOW_STEPS)
        since = "" if stated.is_jump else f" at step {begin}"
        text = f" The learning rate {moved} from {stated.other:.3g}{since} to {stated.rate:.3g} at step {stated.step}."
        if jumps_only and not (stated.is_jump and finding.first_step - stated.step <= MAX_STEPS_SINCE_JUMP):
            text = ""
        evidence |= {"learning_rate_before": stated.other, "learning_rate_before_step": begin}
    elif stated.step <= finding.first_step - MIN_STEADY_STEPS:
        steps = min(WINDOW_STEPS, finding.first_step - stated.step)
        text = (
            f" The learning rate stayed near {stated.rate:.3g} in the readings of the {steps} steps before step"
            f" {finding.first_step}."
        )
    else:
        text = ""
    cause = finding.cause + text * is_stated
    return msgspec.structs.replace(finding, cause=cause, evidence={**finding.evidence, **evidence})
