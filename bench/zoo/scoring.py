"""What is held against a case: whether its fault was found, named, pointed at, and how soon; and the limits of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.zoo.detectors import ANOMALY, EYES, Said, names, saw
from bench.zoo.plan import Case
from bench.zoo.runner import Culprit, Result
from bench.zoo.trainer import REGISTRY, Expected, Fault

SLOWER = "slower-than-fp32"

TICKETS = 0.02
"""Share of healthy runs that may have a ticket: TrainCheck's is under 2 %."""


class Judged(msgspec.Struct, frozen=True):
    """A broken training and what was told of it.

    first: the verdict that is named first, "" for none. culprit: whether it names the part or line that is broken; None
    where nothing is. after, limit: how much later than the first symptom, in `unit`; None where nothing was found, and
    of two runs that are compared as wholes; steps: the same in steps.
    beside: other findings that were told beside the first one. looked: eyes that were there; others: those that saw
    it, and what they named of it.
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


class Healthy(msgspec.Struct, frozen=True):
    """A healthy training and what was told of it all the same. others: those of the eyes there that spoke up."""

    case: Case
    pages: list[str]
    tickets: list[str]
    looked: list[str]
    others: list[str]
    trouble: str = ""


def judged(result: Result, twin: Result) -> Judged:
    """A broken training, beside the same one without the fault."""
    case, fault = result.case, REGISTRY[result.case.what]
    expected, findings = fault.expected, held_against(fault, result.findings)
    has_place = bool(expected.names or expected.line_in)
    onset = 0 if case.life == "resumed" else case.onset
    symptom = first_symptom(expected, result, onset)
    mine = next((each for each in findings if each["verdict"] == case.what), None)
    compared = fault.against is not None
    after = None if mine is None or compared else later(expected, result, symptom, mine["opened_step"])
    return Judged(
        case=case,
        detected=bool({each["verdict"] for each in findings} - {each["verdict"] for each in twin.findings}),
        first=findings[0]["verdict"] if findings else "",
        beside=[each["verdict"] for each in findings[1:]],
        culprit=points_at(findings[0] if findings else {}, result.culprit) if has_place else None,
        pointed=", ".join(str(findings[0][name]) for name in ("tensor", "module", "caller") if findings[0][name])
        if findings
        else "",
        after=after,
        limit=expected.within,
        unit=expected.counted or "steps",
        seconds=None if mine is None or compared else seconds_between(result, symptom, mine["opened_step"]),
        looked=looked(result),
        others=noticed(result, twin, onset),
        steps=None if mine is None or compared else max(0, mine["opened_step"] - symptom),
        trouble=result.trouble,
    )


def held_against(fault: Fault, findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was found. That half precision is slower than float32 is true on a CPU that has no units for it: beside
    another fault of two runs it is left out."""
    left_out = SLOWER if fault.against is not None and fault.name != SLOWER else ""
    return [each for each in findings if each["verdict"] != left_out]


def noticed(result: Result, twin: Result, onset: int) -> dict[str, list[str]]:
    """The eyes that saw what the twin has not, and what they named."""
    seen = {eye: saw(eye, said_by(eye, result), said_by(eye, twin), onset) for eye in looked(result)}
    return {eye: names(said, result.case.what, result.culprit.code) for eye, said in seen.items() if said}


def looked(result: Result) -> list[str]:
    return [eye for eye in EYES if eye != ANOMALY or result.anomaly is not None]


def said_by(eye: str, result: Result) -> Sequence[Said]:
    return (result.anomaly or []) if eye == ANOMALY else result.others


def healthy(result: Result) -> Healthy:
    told = result.findings
    pages, tickets = ([each["verdict"] for each in told if gravity(each) == kind] for kind in ("page", "ticket"))
    there = looked(result)
    spoke = [eye for eye in there if any(each.eye == eye for each in said_by(eye, result))]
    return Healthy(result.case, pages, tickets, there, spoke, result.trouble)


def own_alarm(each: Healthy) -> bool:
    return bool(each.pages or each.tickets)


def gravity(finding: dict[str, Any]) -> str:
    """A cause is as grave as the gravest thing that comes of it."""
    return "page" if "page" in {each["severity"] for each in (finding, *finding["consequences"])} else "ticket"


def first_symptom(expected: Expected, result: Result, onset: int) -> int:
    """The first step that shows the fault."""
    if expected.symptom == "skipped":
        steps = [each.step for each in result.rows if each.skipped]
    else:
        steps = [step for name, step in result.events if name == expected.symptom]
    return min((step for step in steps if step >= onset), default=onset)


def later(expected: Expected, result: Result, symptom: int, opened: int) -> int:
    """From the first symptom to the verdict: steps; or readings, or times of an event, behind the symptom's own."""
    if not expected.counted:
        return max(0, opened - symptom)
    read = [each.step for each in result.rows if expected.counted in each.columns]
    told_at = [step for name, step in result.events if name == expected.counted]
    return sum(symptom < step <= opened for step in read or told_at)


def seconds_between(result: Result, symptom: int, opened: int) -> float | None:
    """From the end of the step before the first symptom to that of the one at which the verdict was reached."""
    before = [each.time for each in result.rows if each.step < symptom] or [each.time for each in result.rows[:1]]
    behind = [each.time for each in result.rows if each.step >= opened] or [each.time for each in result.rows[-1:]]
    return max(0.0, (behind[0] - before[-1]) / 1e9) if before and behind else None


def points_at(finding: dict[str, Any], culprit: Culprit) -> bool:
    """Whether it names a part that is broken, or a line of what breaks it."""
    if {finding.get("tensor"), finding.get("module")} & set(culprit.names):
        return True
    file, _, line = str(finding.get("caller") or "").rpartition(":")
    return any(Path(file).name == name and first <= int(line) <= last for name, first, last in culprit.code if file)


class Limit(msgspec.Struct, frozen=True):
    """One thing that has to hold of at least a share of the runs that it is about."""

    words: str
    found: int
    of: int
    least: float = 1.0

    @property
    def met(self) -> bool:
        return self.found >= self.least * self.of

    @property
    def told(self) -> str:
        return f"{self.found} of {self.of}" + (f" ({100 * self.found / self.of:.1f} %)" if self.of else "")

    @property
    def wanted(self) -> str:
        return f"{100 * self.least:.0f} %"

    @property
    def verdict(self) -> str:
        return "met" if self.met else "**missed**"


def limits(broken: Sequence[Judged], sound: Sequence[Healthy]) -> list[Limit]:
    """What has to hold of all cases."""
    pointing = [each for each in broken if each.culprit is not None]
    timed = [each for each in broken if each.after is not None]
    every: list[Judged | Healthy] = [*broken, *sound]
    return [
        Limit("broken runs in which something is found", sum(each.detected for each in broken), len(broken)),
        Limit("broken runs whose fault is named first", sum(each.right for each in broken), len(broken), 0.95),
        Limit("broken parts or lines that are named", sum(bool(each.culprit) for each in pointing), len(pointing), 0.9),
        Limit("verdicts that are reached in time", sum(each.in_time for each in timed), len(timed)),
        Limit("healthy runs without a page", sum(not each.pages for each in sound), len(sound)),
        Limit("healthy runs without a ticket", sum(not each.tickets for each in sound), len(sound), 1 - TICKETS),
        Limit("trainings that ended as they should", sum(not each.trouble for each in every), len(every)),
    ]
