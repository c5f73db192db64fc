"""Presents the results: lines for the terminal, and bench/results/zoo.md and zoo.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

import msgspec

from bench.common.tables import markdown_table
from bench.zoo import explanations
from bench.zoo.detectors import CAUSE, DETECTORS, PART
from bench.zoo.scoring import FaultScore, HealthyScore, Limit, has_false_alarm

HEADINGS = ("watched by", "noticed", "what is wrong named first", "broken part or line named", "healthy runs disturbed")

TRAINCHECK = (
    "TrainCheck (OSDI '25), of 20 silent errors of its own, as published",
    "18 of 20",
    "–",
    "10 of 20",
    "< 2 %",
)
"""Jiang et al., Training with Confidence: Catching Silent Errors in Deep Learning Training with Automated Proactive
Checks. Its faults are others than ours; we have not run it."""

OTHERS = ("loss and norm thresholds, as published there: the same 20", "2 of 20", "–", "–", "–")


@dataclass(frozen=True)
class Results:
    """All results.

    Attributes:
        seconds: Sum of the durations of all trainings.
        frugal: Faults with the default budget.
    """

    broken: Sequence[FaultScore]
    healthy: Sequence[HealthyScore]
    limits: Sequence[Limit]
    seconds: float
    frugal: Sequence[FaultScore] = ()
    seeds: Sequence[int] = ()


def terminal_lines(results: Results) -> list[str]:
    """Missed faults, false alarms and limits."""
    lines = [*missed_faults(results), *false_alarms(results)]
    lines += [f"{limit.name}: {limit.share}, at least {limit.required}: {limit.verdict}" for limit in results.limits]
    if results.frugal:
        named = _of(sum(score.right for score in results.frugal), len(results.frugal))
        lines += [f"missed: {score}" for score in missed_at_default_budget(results)]
        lines.append(f"named first at the default budget: {named}")
    return [*lines, f"{len(results.broken)} broken and {len(results.healthy)} healthy runs: {results.seconds:.0f} s"]


def write(results: Results, folder: Path, command: str) -> None:
    """Writes zoo.md and zoo.json into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zoo.md").write_text(markdown(results, command))
    plain = {"command": command, "seeds": list(results.seeds), "limits": results.limits}
    plain |= {"broken": results.broken, "healthy": results.healthy, "frugal": results.frugal}
    (folder / "zoo.json").write_text(json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def markdown(results: Results, command: str) -> str:
    missed, disturbed = missed_faults(results), false_alarms(results)
    lines = [
        "# The zoo: injected faults and false alarms",
        "",
        *explanations.method(results.broken, results.healthy, command),
        "",
    ]
    lines += [*markdown_table(comparison(results)), "", *explanations.about_the_comparison(), ""]
    lines += ["## Limits", "", *markdown_table(limit_table(results)), ""]
    lines += ["## Fault by fault", "", *markdown_table(by_fault(results)), "", *explanations.about_the_faults(), ""]
    lines += ["## Missed faults", "", *([f"- {line}" for line in missed] or ["Nothing."]), ""]
    if results.frugal:
        lines += [
            "## At the default budget",
            "",
            *markdown_table(at_default_budget(results)),
            "",
            *explanations.about_the_budget(),
            "",
        ]
        lines += [*(f"- {line}" for line in missed_at_default_budget(results)), ""]
    lines += ["## HealthyScore runs", "", *markdown_table(by_program(results)), ""]
    lines += ["## False alarms", "", *([f"- {line}" for line in disturbed] or ["None."]), ""]
    return "\n".join(lines)


def comparison(results: Results) -> list[tuple[str, ...]]:
    """The main table."""
    broken, sound = results.broken, results.healthy
    with_part = [score for score in broken if score.culprit is not None]
    ours = (
        "ammeter",
        _of(sum(score.detected for score in broken), len(broken)),
        _of(sum(score.right for score in broken), len(broken)),
        _of(sum(bool(score.culprit) for score in with_part), len(with_part)),
        _of(sum(has_false_alarm(score) for score in sound), len(sound)),
    )
    return [HEADINGS, ours, *(_row_of(detector, broken, sound) for detector in DETECTORS), TRAINCHECK, OTHERS]


def _row_of(detector: str, broken: Sequence[FaultScore], sound: Sequence[HealthyScore]) -> tuple[str, ...]:
    """The row of a detector, for the runs that it observed."""
    broken = [score for score in broken if detector in score.looked]
    sound = [score for score in sound if detector in score.looked]
    with_part = [score for score in broken if score.culprit is not None]
    return (
        DETECTORS[detector],
        _of(sum(detector in score.others for score in broken), len(broken)),
        _of(sum(CAUSE in score.others.get(detector, ()) for score in broken), len(broken)),
        _of(sum(PART in score.others.get(detector, ()) for score in with_part), len(with_part)),
        _of(sum(detector in score.others for score in sound), len(sound)),
    )


def limit_table(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(limit.name, limit.share, limit.required, limit.verdict) for limit in results.limits]
    return [("what", "found", "at least", ""), *rows]


def by_fault(results: Results) -> list[tuple[str, ...]]:
    """One row for each fault with all its runs."""
    heading = (
        "fault",
        "runs",
        "found",
        "named first",
        "part or line",
        "later: median, most",
        "at most",
        "s",
        "seen by",
    )
    rows: list[tuple[str, ...]] = [heading]
    for fault, group in groupby(results.broken, lambda score: score.case.what):
        runs = list(group)
        after = sorted(score.after for score in runs if score.after is not None)
        seconds = [score.seconds for score in runs if score.seconds is not None]
        pointed = [score.culprit for score in runs if score.culprit is not None]
        rows.append(
            (
                f"`{fault}`",
                str(len(runs)),
                str(sum(score.detected for score in runs)),
                str(sum(score.right for score in runs)),
                f"{sum(map(bool, pointed))} of {len(pointed)}" if pointed else "–",
                f"{median(after):g}, {after[-1]}" if after else "–",
                f"{runs[0].limit} {_unit(runs[0])}" if after else "–",
                f"{median(seconds):.2f}" if seconds else "–",
                ", ".join(
                    _detected(detector, runs)
                    for detector in DETECTORS
                    if any(detector in score.others for score in runs)
                )
                or "–",
            )
        )
    return rows


def at_default_budget(results: Results) -> list[tuple[str, ...]]:
    """The delay of each verdict with the default budget of 1 % of the step time."""
    rows: list[tuple[str, ...]] = [("fault", "named first", "steps later", "where all is read", "s")]
    for fault, group in groupby(results.frugal, lambda score: score.case.what):
        runs = list(group)
        dense = [score for score in results.broken if score.case.what == fault]
        rows.append(
            (
                f"`{fault}`",
                f"{sum(score.right for score in runs)} of {len(runs)}",
                _steps(runs),
                _steps(dense),
                ", ".join(f"{score.seconds:.2f}" for score in runs if score.seconds is not None) or "–",
            )
        )
    return rows


def _steps(runs: Sequence[FaultScore]) -> str:
    """Median and maximum."""
    steps = sorted(score.steps for score in runs if score.steps is not None)
    return f"{median(steps):g}, {steps[-1]}" if steps else "–"


def by_program(results: Results) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("program", "runs", "pages", "tickets", *DETECTORS)]
    for name, group in groupby(sorted(results.healthy, key=_kind), _kind):
        runs = list(group)
        alarms = [str(sum(detector in score.others for score in runs)) for detector in DETECTORS]
        paged, ticketed = (sum(bool(getattr(score, kind)) for score in runs) for kind in ("pages", "tickets"))
        rows.append((name, str(len(runs)), str(paged), str(ticketed), *alarms))
    return rows


def missed_faults(results: Results) -> list[str]:
    """A line for each broken run with a miss."""
    return [line for score in results.broken if (line := _missed(score))]


def missed_at_default_budget(results: Results) -> list[str]:
    """A line for each fault that the default budget does not show within the run."""
    return [_missed(score) for score in results.frugal if not score.right]


def _missed(score: FaultScore) -> str:
    beside = f" (beside it: {', '.join(score.beside)})" if score.beside else ""
    wrong = []
    if score.trouble:
        wrong.append(score.trouble)
    elif not score.detected:
        wrong.append("nothing was found")
    elif not score.right:
        wrong.append(f"`{score.first}` was named first{beside}")
    if score.detected and score.culprit is False:
        wrong.append(f"it pointed at {score.pointed or 'nothing'}")
    if not score.in_time and not score.case.frugal:
        wrong.append(f"reached {score.after} {_unit(score)} later, not {score.limit}")
    return f"{score.case}: {'; '.join(wrong)}" if wrong else ""


def false_alarms(results: Results) -> list[str]:
    """A line for each healthy run with a finding."""
    return [
        f"{score.case}: {', '.join([*score.pages, *score.tickets, *filter(None, [score.trouble])])}"
        for score in results.healthy
        if has_false_alarm(score) or score.trouble
    ]


def _unit(score: FaultScore) -> str:
    return "steps" if score.unit == "steps" else f"of `{score.unit}`"


def _detected(detector: str, runs: Sequence[FaultScore]) -> str:
    alarmed = sum(detector in score.others for score in runs)
    return f"{detector} {alarmed} of {sum(detector in score.looked for score in runs)}"


def _kind(score: HealthyScore) -> str:
    life = f", {score.case.life}" if score.case.life else ""
    return score.case.what or f"the trainer, {score.case.arch}{life}"


def _of(count: int, of: int) -> str:
    return f"{count} of {of} ({100 * count / of:.1f} %)" if of else "–"
