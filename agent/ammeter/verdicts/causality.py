"""Separates the findings of a run into causes and consequences, and sorts them for display.

One fault results in one finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ammeter.verdicts import ALL, BY_ID
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import BEFORE_FORWARD, Finding, Severity

SLACK_STEPS = 5
"""Steps by which a consequence may seem to begin before its cause: a cause in a sampled column is seen late, and ranks
do not count in lockstep."""

QUOTING = ("gradient-spike", "diverged")
"""Verdicts whose text quotes losses. Ranks have equal gradients and losses of their own, and a consequence may be that
of another rank than its cause."""

Concluded = tuple[str, Finding]
"""A stream and a finding about it."""


@dataclass(frozen=True)
class Explained:
    """A cause with its consequences."""

    stream: str
    finding: Finding
    consequences: list[Finding] = field(default_factory=list)


def explain(findings: Sequence[Concluded]) -> list[Explained]:
    """Returns the causes among the findings of one run, each with its consequences.

    Causes that have consequences come first, then `page` before `ticket`, then by first step. A verdict that several
    streams have remains several findings.
    """
    consequences: dict[int, list[Finding]] = {}
    causes: list[int] = []
    for at, (_, finding) in enumerate(findings):
        root = _root(at, findings)
        if root == at:
            causes.append(at)
        else:
            consequences.setdefault(root, []).append(finding)
    explained = [Explained(*findings[at], sorted(consequences.get(at, []), key=_order)) for at in causes]
    return sorted(explained, key=lambda cause: (not cause.consequences, *_order(cause.finding)))


def _root(at: int, findings: Sequence[Concluded]) -> int:
    """Follows the chain of causes from one finding; returns the index of its end."""
    seen = {at}
    while True:
        stream, finding = findings[at]
        causes = [
            (other[0] != stream, *_begun(other[1]), index)
            for index, other in enumerate(findings)
            if index not in seen and explains(other[1], finding)
        ]
        if not causes:
            return at
        at = min(causes)[-1]
        seen.add(at)


def explains(cause: Finding, other: Finding) -> bool:
    """Whether one finding is a consequence of another.

    If each can cause the other, the earlier one is the cause.
    """
    verdict = BY_ID[cause.verdict]
    if cause.verdict == other.verdict or other.verdict not in verdict.explains:
        return False
    if not verdict.shows(cause, other.verdict):
        return False
    if not cause.active and cause.last_step + SLACK_STEPS < other.first_step:
        return False
    if cause.verdict in BY_ID[other.verdict].explains:
        return _begun(cause) < _begun(other)
    return cause.first_step <= other.first_step + SLACK_STEPS


def gravest(cause: Finding, consequences: Sequence[Finding]) -> Severity:
    """Returns the highest severity among a cause and its consequences."""
    return "page" if "page" in {finding.severity for finding in (cause, *consequences)} else "ticket"


def as_consequence(finding: Finding) -> dict[str, Any]:
    """Returns a finding as it is listed inside its cause.

    The report, incidents and the web page use this form.
    """
    return {name: getattr(finding, name) for name in ("verdict", "severity", "title", "first_step", "cause")}


LOCAL = ("kernel-nan", "nonfinite-loss", "masked-row-nan", "activation-overflow")
"""Verdicts on values that a rank computes before ranks exchange data: the first rank with one is the origin. Gradients
and their consequences, including found_inf, are the same on all ranks."""


def of_ranks(findings: Sequence[Concluded], ranks: Mapping[str, int]) -> list[Concluded]:
    """Adds to causes which rank was first, which one is behind, or whose losses are quoted.

    The findings remain the same otherwise. Runs with restarted ranks remain unchanged, because their steps restart.

    Args:
        findings: Findings of the run.
        ranks: Stream -> rank, for every rank.
    """
    if len(ranks) < 2 or len(set(ranks.values())) < len(ranks):
        return list(findings)
    described = list(findings)
    for verdict in (*LOCAL, "run-stalled"):
        having = [at for at, (stream, finding) in enumerate(findings) if finding.verdict == verdict and stream in ranks]
        having.sort(key=lambda at: findings[at][1].first_step)
        steps = [findings[at][1].first_step for at in having]
        if having and steps[1:2] != steps[:1]:
            stream, first = findings[having[0]]
            others = [(ranks[findings[at][0]], findings[at][1].first_step) for at in having[1:]]
            more = _behind(ranks[stream], others) if verdict == "run-stalled" else _first(ranks[stream], others, ranks)
            described[having[0]] = stream, replace(first, cause=first.cause + more)
    for at, (stream, finding) in enumerate(findings):
        if finding.verdict in QUOTING and " loss" in finding.cause and stream in ranks:
            more = f" The quoted losses are those of rank {ranks[stream]}."
            described[at] = stream, replace(finding, cause=finding.cause + more)
    return described


def _first(rank: int, others: Sequence[tuple[int, int]], ranks: Mapping[str, int]) -> str:
    if not others:
        return f" So far, rank {rank} is the only one of {wording.count(len(ranks), 'rank')}: examine its batch."
    return f" Rank {rank} was first: examine its batch. Rank {others[0][0]} followed at step {others[0][1]}."


def _behind(rank: int, others: Sequence[tuple[int, int]]) -> str:
    if not others:
        return ""
    return f" Rank {rank} is behind: rank {others[0][0]} reached step {others[0][1]}."


RANK = {verdict.id: rank for rank, verdict in enumerate(ALL)}


def _begun(finding: Finding) -> tuple[int, bool, int]:
    """Sorts findings by their beginning: step, part of the step as far as it was measured, usual order of verdicts."""
    return finding.first_step, not finding.evidence.get(BEFORE_FORWARD), RANK[finding.verdict]


def _order(finding: Finding) -> tuple[bool, int, bool, int]:
    return finding.severity != "page", *_begun(finding)
