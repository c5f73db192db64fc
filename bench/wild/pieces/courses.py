"""When a fault is there, as a condition over the step in the generated program."""

from __future__ import annotations

from dataclasses import dataclass

PERIODS = (2, 5, 7, 11, 50)

PERSISTENT = ("constant", "late", "phase")
"""Courses of a fault that stays once it has begun."""

REPEATED = (*(f"every-{period}" for period in PERIODS), "burst", "after-eval")

ALL = (*PERSISTENT, "once", *REPEATED)

EVALUATION_STEPS = 25
"""Steps between two evaluations of a program that evaluates."""

BURST_STEPS = 6


@dataclass(frozen=True)
class Course:
    """onset: the first step with the fault. condition: over `{t}`, empty if the fault is always there."""

    onset: int
    condition: str


def course(name: str, steps: int) -> Course:
    """The course of a name in a program of so many steps."""
    begin = 2 * steps // 5
    if name == "constant":
        return Course(0, "")
    if name in ("late", "phase"):
        return Course(begin, f"{{t}} >= {begin}")
    if name == "once":
        return Course(begin, f"{{t}} == {begin}")
    if name == "burst":
        return Course(begin, f"{begin} <= {{t}} < {begin + BURST_STEPS}")
    if name == "after-eval":
        return Course(EVALUATION_STEPS, f"{{t}} % {EVALUATION_STEPS} == 0 and {{t}} > 0")
    period = int(name.removeprefix("every-"))
    return Course(period - 1, f"{{t}} % {period} == {period - 1}")
