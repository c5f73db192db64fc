"""Compares two groups of runs, each of one training with several seeds, and decides which is better.

Pure. The collector and `ammeter compare` use the same functions. One run of each group decides nothing: the difference
of two runs is no larger than that of two seeds until several seeds show how far they scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.groups.interval import CONFIDENCE, Interval, welch
from ammeter.verdicts.framework.groups.measurement import LOSS, Measurement, measure
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.framework.run_history import RunHistory
from ammeter.wire.metric_directions import HIGHER

Result = Literal["better", "worse", "not distinguishable", "too few runs", "not comparable"]

MIN_RUNS = 3
"""Independent runs per group. Welch's t interval needs two, which scatter by chance as little as they like: with one
degree of freedom its limits are 12.7 standard errors away."""

MAX_LISTED = 5
"""Runs or settings that a reason lists."""


@dataclass(frozen=True)
class Member:
    """One run of a group."""

    id: str
    history: RunHistory

    @property
    def label(self) -> str:
        return self.history.name or self.id


@dataclass(frozen=True)
class GroupComparison:
    """Group A against group B.

    Attributes:
        result: of A: `better` and `worse` only if the interval of the difference excludes 0.
        reasons: for the result.
        notes: what else to know.
        values: of each group, one per independent run.
        differences: settings that differ between the groups, as texts.
    """

    first: tuple[Member, ...]
    second: tuple[Member, ...]
    result: Result
    reasons: list[str]
    notes: list[str] = field(default_factory=list)
    measurement: Measurement | None = None
    values: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    interval: Interval | None = None
    differences: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison for JSON; values that are not finite stay numbers."""
        measured, interval = self.measurement, self.interval
        own = measured.values if measured else (None,) * (len(self.first) + len(self.second))
        groups = {"a": (self.first, own[: len(self.first)], 0), "b": (self.second, own[len(self.first) :], 1)}
        return {
            "decision": self.result,
            "reasons": self.reasons,
            "notes": self.notes,
            "metric": measured.metric if measured else None,
            "better": measured.better if measured else None,
            "first_step": measured.first_step if measured else None,
            "last_step": measured.last_step if measured else None,
            "difference": interval.difference if interval else None,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "degrees_of_freedom": interval.degrees if interval else None,
            "confidence": CONFIDENCE,
            "differences": list(self.differences),
            **{name: _group_json(members, values, self.values[at]) for name, (members, values, at) in groups.items()},
        }


def compare_groups(
    first: Sequence[Member],
    second: Sequence[Member],
    metric: str | None = None,
    better: str | None = None,
    ignored: frozenset[str] = frozenset(),
) -> GroupComparison:
    """Compares group A with group B.

    Args:
        metric: a column such as val_loss; by default the first validation metric of all runs, else the loss.
        better: `lower` or `higher`; by default as the tags of the runs say.
        ignored: settings that may differ within a group.
    """
    a, b = tuple(first), tuple(second)
    if shared := sorted({member.id for member in a} & {member.id for member in b}):
        return GroupComparison(a, b, "not comparable", [f"{shared[0]} is in both groups"])
    measured = measure([member.history for member in (*a, *b)], metric, better)
    if measured is None:
        wanted = f"{metric} at a step of all" if metric else "a validation at a step of all, or a loss at 20 such steps"
        return GroupComparison(a, b, "not comparable", [f"the {len(a) + len(b)} runs do not have {wanted}"])
    values = measured.values[: len(a)], measured.values[len(a) :]
    independent = [list(_independent(members, own)) for members, own in zip((a, b), values, strict=True)]
    counted = tuple(tuple(value for _, value in group) for group in independent)
    notes = [*_notes(a, b, measured, [len(group) for group in counted]), *_between(a, b, ignored)]
    differences = tuple(_differences(a[0], b[0], ignored)) if a and b else ()

    def decided(result: Result, reasons: list[str], interval: Interval | None = None) -> GroupComparison:
        return GroupComparison(a, b, result, reasons, notes, measured, (counted[0], counted[1]), interval, differences)

    if obstacles := [
        *_undirected(measured),
        *_unlike(a, "A", ignored),
        *_unlike(b, "B", ignored),
        *_nonfinite(a, b, measured),
    ]:
        return decided("not comparable", obstacles)
    if lacking := [*_lacking("A", counted[0]), *_lacking("B", counted[1])]:
        return decided("too few runs", lacking)
    if all(len(set(group)) == 1 for group in counted):
        same = f"the values of {measured.metric} are equal within each group, so that their scatter is unknown"
        return decided("too few runs", [same])
    interval = welch(*counted)
    return decided(_result(interval, measured), [_reason(interval, measured, counted)], interval)


def _independent(members: Sequence[Member], values: Sequence[float]) -> Iterator[tuple[Member, float]]:
    """Yields one value per seed: repetitions with one seed scatter less than seeds do."""
    groups: list[list[int]] = []
    for index, member in enumerate(members):
        same = next((group for group in groups if _repeats(members[group[0]], member)), None)
        if same is None:
            groups.append([index])
        else:
            same.append(index)
    for group in groups:
        yield members[group[0]], statistics.fmean(values[index] for index in group)


def _repeats(one: Member, other: Member) -> bool:
    pair = RunComparison(one.history, other.history)
    seeds = pair.seeds
    if seeds[0] is not None and seeds[0] == seeds[1]:
        return True
    return pair.common_losses > 0 and pair.first_difference is None


def _unlike(members: Sequence[Member], name: str, ignored: frozenset[str]) -> Iterator[str]:
    """Yields why the runs of a group are not one training."""
    for member in members[1:]:
        reason = RunComparison(member.history, members[0].history, ignored).exclusion("validation")
        if reason:
            why = reason.removeprefix("not comparable: ")
            yield f"the runs of {name} differ in more than their seed: {why} ({member.label}, {members[0].label})"
            return


def _undirected(measured: Measurement) -> Iterator[str]:
    if measured.better is None:
        name = measured.metric
        yield f"nothing says whether a higher {name} is better; give the option better, or set the tag better.{name}"


def _nonfinite(a: Sequence[Member], b: Sequence[Member], measured: Measurement) -> Iterator[str]:
    for name, members, values in (("A", a, measured.values[: len(a)]), ("B", b, measured.values[len(a) :])):
        bad = [member.label for member, value in zip(members, values, strict=True) if not math.isfinite(value)]
        if bad:
            yield (
                f"{measured.metric} of {len(bad)} of the {wording.count(len(members), 'run')} of {name} is not finite"
                f" ({wording.listed(bad[:MAX_LISTED])}); a mean of the others would hide that"
            )


def _lacking(name: str, values: Sequence[float]) -> Iterator[str]:
    if len(values) < MIN_RUNS:
        yield f"{name} has {wording.count(len(values), 'independent run')}; {MIN_RUNS} are needed"


def _notes(a: Sequence[Member], b: Sequence[Member], measured: Measurement, counted: Sequence[int]) -> Iterator[str]:
    for name, members, count in (("A", a, counted[0]), ("B", b, counted[1])):
        if count < len(members):
            yield (
                f"{wording.count(len(members), 'run')} of {name} count as {count}: runs with one seed, or with losses"
                " that are equal to the bit, are repetitions"
            )
        running = [member.label for member in members if not member.history.over]
        if running:
            yield f"{wording.listed(running[:MAX_LISTED])} of {name} is compared before its end"
    if all(RunComparison(member.history, member.history).seeds[0] is None for member in (*a, *b)):
        yield "no seed is recorded in the config; the runs of a group are taken as independent"
    if measured.metric == LOSS:
        yield "the training loss is compared, which says nothing about new data"


def _between(a: Sequence[Member], b: Sequence[Member], ignored: frozenset[str]) -> Iterator[str]:
    if a and b and (texts := list(_differences(a[0], b[0], ignored))):
        more = f", and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
        yield f"the groups differ in {'; '.join(texts[:MAX_LISTED])}{more}. The decision is about all of it together"


def _differences(one: Member, other: Member, ignored: frozenset[str]) -> Iterator[str]:
    """Yields the settings in which the groups differ, the precision first."""
    if one.history.precision != other.history.precision:
        yield f"precision is {one.history.precision} against {other.history.precision}"
    for difference in RunComparison(one.history, other.history, ignored).forbidding:
        yield difference.text


def _result(interval: Interval, measured: Measurement) -> Result:
    if not interval.excludes_zero:
        return "not distinguishable"
    is_higher = interval.low > 0
    return "better" if is_higher == (measured.better == HIGHER) else "worse"


def _reason(interval: Interval, measured: Measurement, counted: Sequence[Sequence[float]]) -> str:
    means = [statistics.fmean(values) for values in counted]
    at = f"at step {measured.last_step}" if measured.first_step == measured.last_step else ""
    at = at or f"in steps {measured.first_step} to {measured.last_step}"
    numbers = (
        f"mean {measured.metric} {at}: {means[0]:.6g} over {len(counted[0])} runs against {means[1]:.6g} over"
        f" {len(counted[1])}, {measured.better} is better. The difference is {interval.difference:+.3g}, with"
        f" {CONFIDENCE:.0%} confidence between {interval.low:+.3g} and {interval.high:+.3g}"
    )
    if interval.excludes_zero:
        return numbers
    return f"{numbers}, which includes 0. That does not show that the groups are equal"


def _group_json(members: Sequence[Member], values: Sequence[float | None], counted: Sequence[float]) -> dict[str, Any]:
    return {
        "runs": [
            {
                "id": member.id,
                "name": member.history.name,
                "seed": RunComparison(member.history, member.history).seeds[0],
                "value": value,
            }
            for member, value in zip(members, values, strict=True)
        ],
        "independent": len(counted),
        "mean": statistics.fmean(counted) if counted else None,
        "deviation": statistics.stdev(counted) if len(counted) > 1 and all(map(math.isfinite, counted)) else None,
    }
