"""One fault, one finding: which findings of a run are consequences of another, and in which order people read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ammeter.verdicts import ALL, BY_ID
from ammeter.verdicts.finding import Finding

SLACK_STEPS = 5
"""A consequence may seem to begin this much before its cause: a cause that shows in a sampled column is seen late, and
ranks do not count in lockstep."""


@dataclass(frozen=True)
class Explained:
    """A cause with what came of it. streams: every stream with this same finding, `stream` is the first to have it."""

    stream: str
    finding: Finding
    consequences: list[Finding] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)


def explain(findings: Sequence[tuple[str, Finding]]) -> list[Explained]:
    """The causes among (stream, finding) of one run, each with its consequences: causes first, then page before
    ticket, then by first step. The same verdict on several streams is one fault; its worst, earliest finding speaks."""
    several = _by_verdict(findings)
    speakers = {verdict: min(group, key=_urgency) for verdict, group in several.items()}
    causes = {verdict: _root(verdict, [finding for _, finding in speakers.values()]) for verdict in speakers}
    explained = []
    for verdict, (stream, finding) in speakers.items():
        if causes[verdict] != verdict:
            continue
        consequences = [speakers[each][1] for each, cause in causes.items() if cause == verdict and each != verdict]
        streams = list(dict.fromkeys([stream, *(each for each, _ in several[verdict])]))
        explained.append(Explained(stream, finding, sorted(consequences, key=_order), streams))
    return sorted(explained, key=lambda each: (not each.consequences, *_order(each.finding)))


def _by_verdict(findings: Sequence[tuple[str, Finding]]) -> dict[str, list[tuple[str, Finding]]]:
    several: dict[str, list[tuple[str, Finding]]] = {}
    for stream, finding in findings:
        several.setdefault(finding.verdict, []).append((stream, finding))
    return several


def _root(verdict: str, findings: list[Finding]) -> str:
    """The verdict at the end of the chain of causes that leads away from this one."""
    by_id = {finding.verdict: finding for finding in findings}
    seen = {verdict}
    while True:
        causes = [other for other in findings if other.verdict not in seen and explains(other, by_id[verdict])]
        if not causes:
            return verdict
        verdict = min(causes, key=lambda other: (other.first_step, RANK[other.verdict])).verdict
        seen.add(verdict)


def explains(cause: Finding, other: Finding) -> bool:
    """Whether one finding is a consequence of another. Where either can bring about the other, the earlier one did."""
    if cause.verdict == other.verdict or other.verdict not in BY_ID[cause.verdict].explains:
        return False
    if not cause.active and cause.last_step + SLACK_STEPS < other.first_step:
        return False
    if cause.verdict in BY_ID[other.verdict].explains:
        return (cause.first_step, RANK[cause.verdict]) < (other.first_step, RANK[other.verdict])
    return cause.first_step <= other.first_step + SLACK_STEPS


RANK = {verdict.id: rank for rank, verdict in enumerate(ALL)}


def _order(finding: Finding) -> tuple[bool, int, int]:
    return finding.severity != "page", finding.first_step, RANK[finding.verdict]


def _urgency(told: tuple[str, Finding]) -> tuple[bool, bool, int]:
    return not told[1].active, told[1].severity != "page", told[1].first_step
