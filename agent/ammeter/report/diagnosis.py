"""Diagnoses a run from its journals, without a server: findings, causes and fixes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ammeter import journal, verdicts
from ammeter.journal.find import NoJournal, streams_in, views
from ammeter.report import baseline as comparing
from ammeter.report import run_summary
from ammeter.report.stream_summary import Span, Tally
from ammeter.verdicts import silence
from ammeter.verdicts.causality import Explained, as_consequence, explain, gravest, of_ranks
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.rank_alignment import AlignedSteps, align_steps
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.wire import columns
from ammeter.wire import ranks as merging
from ammeter.wire.columns import Tick
from ammeter.wire.frames import Schema


@dataclass(frozen=True)
class Told:
    """A finding with its consequences and the ranks that have it."""

    finding: Finding
    ranks: list[int]
    consequences: list[Finding]


@dataclass
class Report:
    """The diagnosis of a run.

    findings: causes first. faults: verdicts that raised, with their errors. whole_norm: the gradient norm of all shards
    together, for sharded ranks. pair: the comparison with the baseline, if one is named. unknown: the name of a
    baseline that was not found. undelivered: the reasons why the collector does not have all streams.
    """

    streams: list[Tally] = field(default_factory=list)
    findings: list[Told] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    whole_norm: Span = field(default_factory=Span)
    pair: RunComparison | None = None
    unknown: str | None = None
    silenced: dict[str, bool] = field(default_factory=dict)
    """Silenced verdicts, each with whether it had a finding."""
    undelivered: list[str] = field(default_factory=list)

    @property
    def paged(self) -> bool:
        """Whether the run has a page-level finding."""
        return bool(self.paging)

    @property
    def paging(self) -> list[Told]:
        """The findings whose severity, or that of a consequence, is `page`."""
        return [told for told in self.findings if gravest(told.finding, told.consequences) == "page"]

    @property
    def asked(self) -> list[Verdict]:
        """The verdicts that apply to this run.

        Rank verdicts need several ranks, comparisons need a baseline.
        """
        asked = list(verdicts.STREAM_VERDICTS)
        asked += verdicts.RANK_VERDICTS if len({each.rank for each in self.streams if each.is_rank}) > 1 else ()
        asked += verdicts.BASELINE_VERDICTS if self.pair else ()
        return [each for each in verdicts.ALL if each in asked]

    def as_json(self) -> dict[str, Any]:
        """Returns {"run", "findings", "seen", "baseline", "summary"}. Non-finite numbers become text."""
        told = {
            "run": run_summary.run_of(self.streams),
            "findings": [_as_json(each) for each in self.findings],
            "seen": [each for each in run_summary.seen_in(self.streams) if each.get("verdict") not in self.silenced],
            "baseline": self.pair.as_json() if self.pair else None,
            "summary": {
                **run_summary.summary_of(self.streams, self.whole_norm),
                "checked": [each.id for each in self.asked],
                "verdicts_failed": self.faults,
                "undelivered": self.undelivered,
                "silenced": self.silenced,
            },
        }
        finite: dict[str, Any] = wording.finite(told)
        return finite


def diagnose(path: Path, baseline: str | None = None, quiet: Collection[str] = ()) -> Report:
    """Diagnoses the folder of a run or of one stream.

    baseline: the run to compare with; by default the one that the run names. quiet: verdicts to omit in addition to
    those that the run's tag silences. Raises NoJournal if there is no journal.
    """
    report, findings = Report(), []
    ranks: dict[str, int] = {}
    folders = {stream.name: stream for stream in streams_in(path)}
    for stream in folders.values():
        counted = Tally(stream.name)
        findings += [(stream.name, finding) for finding in _judge(stream, counted, report.faults)]
        if counted.is_rank:
            ranks[stream.name] = counted.rank
        report.streams.append(counted)
        report.undelivered += [why] if (why := journal.refusal(stream)) else []
    findings += _judge_ranks(report.streams, folders, report.faults)
    findings += _judge_runs(report, path, baseline)
    went_on = run_summary.continued(report.streams)
    present = [each for each in findings if not _is_over(*each, went_on)]
    report.silenced = _silenced(report.streams, quiet, {finding.verdict for _, finding in present})
    present = [each for each in present if each[1].verdict not in report.silenced]
    report.findings = _merged(explain(of_ranks(present, ranks)), ranks)
    report.whole_norm = _whole_norm(report.streams, folders)
    return report


def _judge_runs(report: Report, path: Path, baseline: str | None) -> Iterator[tuple[str, Finding]]:
    """Yields the findings of the comparison verdicts with the stream of the compared rank."""
    try:
        report.pair = comparing.find(path, baseline)
    except NoJournal:
        if baseline is not None:
            raise
        report.unknown = comparing.named_baseline(path)
    if report.pair is not None:
        judged = verdicts.judge_runs(report.pair)
        report.faults.update(judged.faults)
        compared = min((each for each in report.streams if each.is_rank), key=lambda each: (each.rank, each.first_time))
        yield from ((compared.stream, finding) for finding in judged.findings)


def _is_over(stream: str, finding: Finding, went_on: set[str]) -> bool:
    """Whether a `run-lost` finding is void because the launcher restarted the process."""
    return finding.verdict == "run-lost" and stream in went_on


def _whole_norm(streams: Sequence[Tally], folders: Mapping[str, Path]) -> Span:
    """Returns the gradient norm over all shards. Streams without shards are not read again."""
    course = Span()
    for life in merging.lives(each.life for each in streams if each.is_rank and each.sharded):
        ranks = {each.rank: views(folders[each.stream]) for each in life}
        for view in merging.merged(ranks, max(each.world_size for each in life)):
            course.add(view.scalar("grad_norm"), view.steps)
    return course


def _silenced(streams: Sequence[Tally], quiet: Collection[str], reached: Collection[str]) -> dict[str, bool]:
    """Maps each verdict silenced by the caller or the run's tag to whether it fired."""
    tagged = {name for each in streams if each.hello for name in silence.of_tags(each.hello.tags)}
    return {name: name in reached for name in sorted({*quiet, *tagged} & verdicts.BY_ID.keys())}


def _judge(stream: Path, counted: Tally, faults: dict[str, str]) -> Iterator[Finding]:
    """Yields the last finding of each verdict on one stream."""
    states: dict[str, bytes] = {}
    last: dict[str, Finding] = {}
    for view in views(stream):
        counted.add(view)
        judged = verdicts.judge(states, view)
        states = judged.states
        faults.update(judged.faults)
        _note(last, judged.findings)
    counted.alive = journal.is_alive(stream)
    tick = Tick(time.time_ns(), counted.alive, counted.last_time, offline=True)
    judged = verdicts.judge(states, columns.view(Schema(), (), tick=tick))
    _note(last, judged.findings)
    yield from last.values()


def _note(last: dict[str, Finding], findings: Sequence[Finding]) -> None:
    """Stores the newest findings.

    A verdict that was page-level once stays so, like the collector's incident.
    """
    for finding in findings:
        before = last.get(finding.verdict)
        graver = before is not None and before.severity == "page"
        last[finding.verdict] = msgspec.structs.replace(finding, severity="page") if graver else finding


def _judge_ranks(
    streams: Sequence[Tally], folders: Mapping[str, Path], faults: dict[str, str]
) -> Iterator[tuple[str, Finding]]:
    """Yields the last findings of the rank verdicts with the first affected rank's stream."""
    by_name = {each.stream: each for each in streams if each.is_rank}
    for life in merging.lives(each.life for each in by_name.values()):
        ranks = {each.rank: by_name[each.stream] for each in life}
        last: dict[str, Finding] = {}
        states: dict[str, bytes] = {}
        for together in _together(ranks, folders):
            judged = verdicts.judge_ranks(states, together)
            states = judged.states
            faults.update(judged.faults)
            _note(last, judged.findings)
        yield from ((ranks[finding.ranks[0]].stream, finding) for finding in last.values())


def _together(ranks: Mapping[int, Tally], folders: Mapping[str, Path]) -> Iterator[AlignedSteps]:
    if len(ranks) > 1:
        over = [rank for rank, each in ranks.items() if each.state != "running"]
        yield from align_steps({rank: views(folders[each.stream]) for rank, each in ranks.items()}, over)
        yield AlignedSteps(standings=tuple(each.standing for each in ranks.values()))


def _merged(explained: Sequence[Explained], ranks: dict[str, int]) -> list[Told]:
    """Merges findings into one per verdict, with the wording of the first rank."""
    told: dict[str, Told] = {}
    for each in explained:
        first = told.setdefault(each.finding.verdict, Told(each.finding, [], []))
        first.ranks.extend(each.finding.ranks or [ranks.get(each.stream, 0)])
        known = {consequence.verdict for consequence in first.consequences}
        first.consequences.extend(more for more in each.consequences if more.verdict not in known)
    return list(told.values())


def _as_json(told: Told) -> dict[str, Any]:
    found = msgspec.to_builtins(told.finding)
    consequences = [as_consequence(each) for each in told.consequences]
    severity = gravest(told.finding, told.consequences)
    return {**found, "severity": severity, "ranks": sorted(set(told.ranks)), "consequences": consequences}
