"""Scores each case: was its fault found, named and located, and how soon; and limits for all cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.zoo.culprit import Culprit
from bench.zoo.detectors import ANOMALY, DETECTORS, Alarm, named_by, new_alarms
from bench.zoo.plan import Case
from bench.zoo.runner import Result
from bench.zoo.trainer import REGISTRY, Expected, Fault

SLOWER = "slower-than-fp32"

MAX_TICKET_SHARE = 0.02
"""Share of healthy runs that may have a ticket: TrainCheck's is under 2 %."""


class FaultScore(msgspec.Struct, frozen=True):
    """The score of a broken training; the field names are those of zoo.json.

    Attributes:
        detected: Whether it has a finding that its twin does not have.
        first: The verdict of the first finding, "" for none.
        beside: The verdicts of the other findings.
        culprit: Whether the first finding names the broken part or line; None for faults without one.
        pointed: The tensor, module and line that the first finding names.
        after: Delay from the first symptom to the verdict, in `unit`; None without a finding, or for faults that take
            two runs to show.
        limit: Largest permitted delay.
        steps: The delay in steps.
        looked: Detectors that observed the training.
        others: Detectors with an alarm that the twin does not have, and what they named.
        trouble: An unexpected end of the training.
    """

    case: Case
    detected: bool
    first: str
    beside: list[str]
    culprit: bool | None
    pointed: str
    after: int | None
    limit: int
    unit: str
    seconds: float | None
    looked: list[str]
    others: dict[str, list[str]]
    steps: int | None = None
    trouble: str = ""

    @property
    def right(self) -> bool:
        return self.first == self.case.what

    @property
    def in_time(self) -> bool:
        return self.after is None or self.after <= self.limit


class HealthyScore(msgspec.Struct, frozen=True):
    """The score of a healthy training: its findings, its detectors, and those of them that raised an alarm."""

    case: Case
    pages: list[str]
    tickets: list[str]
    looked: list[str]
    others: list[str]
    trouble: str = ""


def score_fault(result: Result, twin: Result) -> FaultScore:
    """Scores a broken training, given its twin."""
    case, fault = result.case, REGISTRY[result.case.what]
    expected, findings = fault.expected, relevant_findings(fault, result.findings)
    has_place = bool(expected.names or expected.line_in)
    onset = 0 if case.life == "resumed" else case.onset
    symptom = first_symptom(expected, result, onset)
    own = next((finding for finding in findings if finding["verdict"] == case.what), None)
    compared = fault.against is not None
    after = None if own is None or compared else delay_after(expected, result, symptom, own["opened_step"])
    return FaultScore(
        case=case,
        detected=bool({finding["verdict"] for finding in findings} - {finding["verdict"] for finding in twin.findings}),
        first=findings[0]["verdict"] if findings else "",
        beside=[finding["verdict"] for finding in findings[1:]],
        culprit=points_at(findings[0] if findings else {}, result.culprit) if has_place else None,
        pointed=", ".join(str(findings[0][name]) for name in ("tensor", "module", "caller") if findings[0][name])
        if findings
        else "",
        after=after,
        limit=expected.within,
        unit=expected.counted or "steps",
        seconds=None if own is None or compared else seconds_between(result, symptom, own["opened_step"]),
        looked=detectors_of(result),
        others=detected_by(result, twin, onset),
        steps=None if own is None or compared else max(0, own["opened_step"] - symptom),
        trouble=result.trouble,
    )


def relevant_findings(fault: Fault, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The findings without slower-than-fp32 beside other faults.

    On a CPU without half-precision units half precision is slower than float32.
    """
    left_out = SLOWER if fault.against is not None and fault.name != SLOWER else ""
    return [finding for finding in findings if finding["verdict"] != left_out]


def detected_by(result: Result, twin: Result, onset: int) -> dict[str, list[str]]:
    """The detectors with new alarms, and what these name."""
    seen = {
        detector: new_alarms(detector, alarms_of(detector, result), alarms_of(detector, twin), onset)
        for detector in detectors_of(result)
    }
    return {
        detector: named_by(alarms, result.case.what, result.culprit.code) for detector, alarms in seen.items() if alarms
    }


def detectors_of(result: Result) -> list[str]:
    return [detector for detector in DETECTORS if detector != ANOMALY or result.anomaly is not None]


def alarms_of(detector: str, result: Result) -> Sequence[Alarm]:
    return (result.anomaly or []) if detector == ANOMALY else result.others


def score_healthy(result: Result) -> HealthyScore:
    findings = result.findings
    pages, tickets = (
        [finding["verdict"] for finding in findings if overall_severity(finding) == kind] for kind in ("page", "ticket")
    )
    present = detectors_of(result)
    alarmed = [
        detector for detector in present if any(alarm.detector == detector for alarm in alarms_of(detector, result))
    ]
    return HealthyScore(result.case, pages, tickets, present, alarmed, result.trouble)


def has_false_alarm(score: HealthyScore) -> bool:
    return bool(score.pages or score.tickets)


def overall_severity(finding: dict[str, Any]) -> str:
    """The highest severity of a finding and its consequences."""
    return "page" if "page" in {member["severity"] for member in (finding, *finding["consequences"])} else "ticket"


def first_symptom(expected: Expected, result: Result, onset: int) -> int:
    """The first step that shows the fault."""
    if expected.symptom == "skipped":
        steps = [row.step for row in result.rows if row.skipped]
    else:
        steps = [step for name, step in result.events if name == expected.symptom]
    return min((step for step in steps if step >= onset), default=onset)


def delay_after(expected: Expected, result: Result, symptom: int, opened: int) -> int:
    """Delay from the first symptom to the verdict, in steps, readings of a column, or occurrences of an event."""
    if not expected.counted:
        return max(0, opened - symptom)
    read = [row.step for row in result.rows if expected.counted in row.columns]
    occurrences = [step for name, step in result.events if name == expected.counted]
    return sum(symptom < step <= opened for step in read or occurrences)


def seconds_between(result: Result, symptom: int, opened: int) -> float | None:
    """Time from the end of the step before the first symptom to the end of the verdict's step."""
    before = [row.time for row in result.rows if row.step < symptom] or [row.time for row in result.rows[:1]]
    until = [row.time for row in result.rows if row.step >= opened] or [row.time for row in result.rows[-1:]]
    return max(0.0, (until[0] - before[-1]) / 1e9) if before and until else None


def points_at(finding: dict[str, Any], culprit: Culprit) -> bool:
    """Whether it names a broken part, or a line of the code that breaks it."""
    if {finding.get("tensor"), finding.get("module")} & set(culprit.names):
        return True
    file, _, line = str(finding.get("caller") or "").rpartition(":")
    return any(Path(file).name == name and first <= int(line) <= last for name, first, last in culprit.code if file)


class Limit(msgspec.Struct, frozen=True, rename={"name": "words"}):
    """A condition that at least a share of some runs has to meet. zoo.json calls the name `words`."""

    name: str
    found: int
    of: int
    least: float = 1.0

    @property
    def is_met(self) -> bool:
        return self.found >= self.least * self.of

    @property
    def share(self) -> str:
        return f"{self.found} of {self.of}" + (f" ({100 * self.found / self.of:.1f} %)" if self.of else "")

    @property
    def required(self) -> str:
        return f"{100 * self.least:.0f} %"

    @property
    def verdict(self) -> str:
        return "met" if self.is_met else "**missed**"


def limits(broken: Sequence[FaultScore], sound: Sequence[HealthyScore]) -> list[Limit]:
    """The limits for all cases."""
    located = [score for score in broken if score.culprit is not None]
    timed = [score for score in broken if score.after is not None]
    every: list[FaultScore | HealthyScore] = [*broken, *sound]
    return [
        Limit("broken runs in which something is found", sum(score.detected for score in broken), len(broken)),
        Limit("broken runs whose fault is named first", sum(score.right for score in broken), len(broken), 0.95),
        Limit("broken parts or lines that are named", sum(bool(score.culprit) for score in located), len(located), 0.9),
        Limit("verdicts that are reached in time", sum(score.in_time for score in timed), len(timed)),
        Limit("healthy runs without a page", sum(not score.pages for score in sound), len(sound)),
        Limit(
            "healthy runs without a ticket", sum(not score.tickets for score in sound), len(sound), 1 - MAX_TICKET_SHARE
        ),
        Limit("trainings that ended as they should", sum(not score.trouble for score in every), len(every)),
    ]
