"""Diagnoses a run from its journals, without a server: findings, causes and fixes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ammeter import journal, verdicts
from ammeter.journal.find import NoJournal, streams_in, views
from ammeter.report import baseline as baselines
from ammeter.report import run_summary
from ammeter.report.column_summary import ColumnSummary
from ammeter.report.stream_summary import StreamSummary
from ammeter.verdicts import not_judged, silence
from ammeter.verdicts.causality import Explained, as_consequence, explain, gravest, of_ranks
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.rank_alignment import AlignedSteps, align_steps
from ammeter.verdicts.framework.run_comparison import RunComparison
from ammeter.verdicts.not_judged import NotJudged
from ammeter.wire import columns
from ammeter.wire import ranks as merging
from ammeter.wire.columns import Tick
from ammeter.wire.frames import Schema


@dataclass(frozen=True)
class ReportedFinding:
    """A finding with its consequences and the ranks that have it."""

    finding: Finding
    ranks: list[int]
    consequences: list[Finding]

    @property
    def severity(self) -> str:
        """The gravest severity of the finding and its consequences."""
        return gravest(self.finding, self.consequences)

    @property
    def distinct_ranks(self) -> list[int]:
        return sorted(set(self.ranks))

    @property
    def rank(self) -> int:
        """The rank whose numbers the finding contains."""
        return self.ranks[0]

    def as_json(self) -> dict[str, Any]:
        return {
            **msgspec.to_builtins(self.finding),
            "severity": self.severity,
            "ranks": self.distinct_ranks,
            "rank": self.rank,
            "consequences": [as_consequence(consequence) for consequence in self.consequences],
        }


@dataclass
class Report:
    """The diagnosis of a run.

    Attributes:
        findings: Causes first.
        faults: Verdicts that raised, with their errors.
        norm_of_shards: The gradient norm of all shards together, for sharded ranks.
        pair: The comparison with the baseline, if one is named.
        missing_baseline: The name of a baseline that was not found.
        silenced: Silenced verdicts, each with whether it had a finding.
        not_judged: Verdicts that too few readings leave open.
        undelivered: The reasons why the collector does not have all streams.
    """

    streams: list[StreamSummary] = field(default_factory=list)
    findings: list[ReportedFinding] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    norm_of_shards: ColumnSummary = field(default_factory=ColumnSummary)
    pair: RunComparison | None = None
    missing_baseline: str | None = None
    silenced: dict[str, bool] = field(default_factory=dict)
    undelivered: list[str] = field(default_factory=list)
    not_judged: list[NotJudged] = field(default_factory=list)

    @property
    def paged(self) -> bool:
        """Whether the run has a page-level finding."""
        return bool(self.paging)

    @property
    def paging(self) -> list[ReportedFinding]:
        """The findings whose severity, or that of a consequence, is `page`."""
        return [finding for finding in self.findings if finding.severity == "page"]

    @property
    def evaluated(self) -> list[Verdict]:
        """The verdicts that apply to this run.

        Rank verdicts need several ranks, comparisons need a baseline.
        """
        applicable = list(verdicts.STREAM_VERDICTS)
        ranks = {stream.rank for stream in self.streams if stream.is_rank}
        applicable += verdicts.RANK_VERDICTS if len(ranks) > 1 else ()
        applicable += verdicts.BASELINE_VERDICTS if self.pair else ()
        return [verdict for verdict in verdicts.ALL if verdict in applicable]

    @property
    def judged(self) -> list[Verdict]:
        """The verdicts that apply to this run, had enough readings and did not raise."""
        unjudged = {entry.verdict for entry in self.not_judged} | self.faults.keys()
        return [verdict for verdict in self.evaluated if verdict.id not in unjudged]

    def as_json(self) -> dict[str, Any]:
        """Returns {"run", "findings", "seen", "baseline", "summary"}. Non-finite numbers become text."""
        seen = run_summary.seen_in(self.streams)
        document = {
            "run": run_summary.run_of(self.streams),
            "findings": [finding.as_json() for finding in self.findings],
            "seen": [entry for entry in seen if entry.get("verdict") not in self.silenced],
            "baseline": self.pair.as_json() if self.pair else None,
            "summary": self._summary(),
        }
        finite: dict[str, Any] = wording.finite(document)
        return finite

    def _summary(self) -> dict[str, Any]:
        return {
            **run_summary.summary_of(self.streams, self.norm_of_shards),
            "checked": [verdict.id for verdict in self.judged],
            "not_judged": [asdict(entry) for entry in self.not_judged],
            "verdicts_failed": self.faults,
            "undelivered": self.undelivered,
            "silenced": self.silenced,
        }


def diagnose(path: Path, baseline: str | None = None, silenced: Collection[str] = ()) -> Report:
    """Diagnoses the folder of a run or of one stream.

    Args:
        baseline: The run to compare with; by default the one that the run names.
        silenced: Verdicts to omit in addition to those that the run's tag silences.

    Raises:
        NoJournal: There is no journal.
    """
    report, findings = Report(), []
    ranks: dict[str, int] = {}
    folders = {stream.name: stream for stream in streams_in(path)}
    for stream in folders.values():
        summary = StreamSummary(stream.name)
        findings += [(stream.name, finding) for finding in _judge(stream, summary, report.faults)]
        if summary.is_rank:
            ranks[stream.name] = summary.rank
        report.streams.append(summary)
        report.undelivered += [reason] if (reason := journal.refusal(stream)) else []
    findings += _judge_ranks(report.streams, folders, report.faults)
    findings += _judge_runs(report, path, baseline)
    continued = run_summary.continued(report.streams)
    findings = [entry for entry in findings if not _is_void(*entry, continued)]
    report.not_judged = _not_judged(report.streams, {finding.verdict for _, finding in findings})
    report.silenced = _silenced(report.streams, silenced, {finding.verdict for _, finding in findings})
    findings = [entry for entry in findings if entry[1].verdict not in report.silenced]
    findings.sort(key=lambda entry: ranks.get(entry[0], 0))
    report.findings = _merged(explain(of_ranks(findings, ranks)), ranks)
    report.norm_of_shards = _norm_of_shards(report.streams, folders)
    return report


def _judge_runs(report: Report, path: Path, baseline: str | None) -> Iterator[tuple[str, Finding]]:
    """Yields the findings of the comparison verdicts with the stream of the compared rank."""
    try:
        report.pair = baselines.find(path, baseline)
    except NoJournal:
        if baseline is not None:
            raise
        report.missing_baseline = baselines.named_baseline(path)
    if report.pair is not None:
        judged = verdicts.judge_runs(report.pair)
        report.faults.update(judged.faults)
        ranks = (stream for stream in report.streams if stream.is_rank)
        compared = min(ranks, key=lambda stream: (stream.rank, stream.first_time))
        yield from ((compared.stream, finding) for finding in judged.findings)


def _not_judged(streams: Sequence[StreamSummary], reached: Collection[str]) -> list[NotJudged]:
    ranks = [(stream.counters, stream.precision) for stream in streams if stream.is_rank]
    return not_judged.not_judged(ranks, reached)


def _is_void(stream: str, finding: Finding, continued: set[str]) -> bool:
    """Whether a `run-lost` finding is void because the launcher restarted the process."""
    return finding.verdict == "run-lost" and stream in continued


def _norm_of_shards(streams: Sequence[StreamSummary], folders: Mapping[str, Path]) -> ColumnSummary:
    """Returns the gradient norm over all shards. Streams without shards are not read again."""
    norm = ColumnSummary()
    for attempt in merging.lives(stream.life for stream in streams if stream.is_rank and stream.sharded):
        ranks = {life.rank: views(folders[life.stream]) for life in attempt}
        for view in merging.merged(ranks, max(life.world_size for life in attempt)):
            norm.add(view.scalar("grad_norm"), view.steps)
    return norm


def _silenced(streams: Sequence[StreamSummary], names: Collection[str], reached: Collection[str]) -> dict[str, bool]:
    """Maps each verdict silenced by the caller or the run's tag to whether it fired."""
    tagged = {name for stream in streams if stream.hello for name in silence.of_tags(stream.hello.tags)}
    return {name: name in reached for name in sorted({*names, *tagged} & verdicts.BY_ID.keys())}


def _judge(stream: Path, summary: StreamSummary, faults: dict[str, str]) -> Iterator[Finding]:
    """Yields the last finding of each verdict on one stream."""
    states: dict[str, bytes] = {}
    last: dict[str, Finding] = {}
    for view in views(stream):
        summary.add(view)
        judged = verdicts.judge(states, view)
        states = judged.states
        faults.update(judged.faults)
        _keep_latest(last, judged.findings)
    summary.alive = journal.is_alive(stream)
    tick = Tick(time.time_ns(), summary.alive, summary.last_time, offline=True)
    judged = verdicts.judge(states, columns.view(Schema(), (), tick=tick))
    _keep_latest(last, judged.findings)
    yield from last.values()


def _keep_latest(last: dict[str, Finding], findings: Sequence[Finding]) -> None:
    """Stores the newest findings.

    A verdict that was page-level once stays so, like the collector's incident.
    """
    for finding in findings:
        before = last.get(finding.verdict)
        graver = before is not None and before.severity == "page"
        last[finding.verdict] = msgspec.structs.replace(finding, severity="page") if graver else finding


def _judge_ranks(
    streams: Sequence[StreamSummary], folders: Mapping[str, Path], faults: dict[str, str]
) -> Iterator[tuple[str, Finding]]:
    """Yields the last findings of the rank verdicts with the first affected rank's stream."""
    by_name = {stream.stream: stream for stream in streams if stream.is_rank}
    for attempt in merging.lives(stream.life for stream in by_name.values()):
        ranks = {life.rank: by_name[life.stream] for life in attempt}
        last: dict[str, Finding] = {}
        states: dict[str, bytes] = {}
        for aligned in _aligned(ranks, folders):
            judged = verdicts.judge_ranks(states, aligned)
            states = judged.states
            faults.update(judged.faults)
            _keep_latest(last, judged.findings)
        yield from ((ranks[finding.ranks[0]].stream, finding) for finding in last.values())


def _aligned(ranks: Mapping[int, StreamSummary], folders: Mapping[str, Path]) -> Iterator[AlignedSteps]:
    if len(ranks) > 1:
        over = [rank for rank, stream in ranks.items() if stream.state != "running"]
        yield from align_steps({rank: views(folders[stream.stream]) for rank, stream in ranks.items()}, over)
        yield AlignedSteps(standings=tuple(stream.standing for stream in ranks.values()))


def _merged(explained: Sequence[Explained], ranks: dict[str, int]) -> list[ReportedFinding]:
    """Merges findings into one per verdict, with the wording of the rank that has it first, or of the lowest."""
    merged: dict[str, ReportedFinding] = {}
    for cause in explained:
        first = merged.setdefault(cause.finding.verdict, ReportedFinding(cause.finding, [], []))
        first.ranks.extend(cause.finding.ranks or [ranks.get(cause.stream, 0)])
        known = {consequence.verdict for consequence in first.consequences}
        first.consequences.extend(more for more in cause.consequences if more.verdict not in known)
    return list(merged.values())
