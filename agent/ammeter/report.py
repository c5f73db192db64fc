"""`ammeter report`: reads a run's journals and says what went wrong, why, and what to change, without any server."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ammeter import block, journal, merging, overall, verdicts
from ammeter.block import Tick
from ammeter.settings import settings
from ammeter.tally import Span, Tally
from ammeter.verdicts import words
from ammeter.verdicts.causes import Explained, as_consequence, explain, gravest, of_ranks
from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.vitals import Together, in_step
from ammeter.wire import Bye, Event, Frame, Hello, Lost, Schema, Steps

ROWS = 500
"""Rows that are judged at a time; bounds the memory, and nothing else depends on it."""

FINE, WRONG_CALL, PAGE = 0, 2, 3


class NoJournal(ValueError):
    """A path where no journal lies."""


@dataclass(frozen=True)
class Told:
    """A finding of the run: its cause first, what came of it inside. ranks: those that have it."""

    finding: Finding
    ranks: list[int]
    consequences: list[Finding]


@dataclass
class Report:
    """What a run's journals say. findings are ordered causes first; faults: verdicts that failed, and with what.

    whole_norm: the gradient norm of all shards together, where ranks have shards.
    """

    streams: list[Tally] = field(default_factory=list)
    findings: list[Told] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    whole_norm: Span = field(default_factory=Span)

    @property
    def paged(self) -> bool:
        """Whether anything was found that is worth waking a person."""
        return any(gravest(told.finding, told.consequences) == "page" for told in self.findings)

    @property
    def asked(self) -> list[Verdict]:
        """The verdicts that could be reached: those that compare ranks want several."""
        several = len({each.rank for each in self.streams if each.is_rank}) > 1
        return [each for each in verdicts.ALL if each in verdicts.OF_A_STREAM or several]

    def as_json(self) -> dict[str, Any]:
        """{"run", "findings", "seen", "summary"}; numbers that are not finite are text."""
        told = {
            "run": overall.run_of(self.streams),
            "findings": [_as_json(each) for each in self.findings],
            "seen": overall.seen_in(self.streams),
            "summary": {
                **overall.summary_of(self.streams, self.whole_norm),
                "checked": [each.id for each in self.asked],
                "verdicts_failed": self.faults,
            },
        }
        finite: dict[str, Any] = words.finite(told)
        return finite


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns 0 without a page-level finding, 3 with one, 2 for a path without a journal."""
    given = _arguments(argv)
    try:
        reports = [diagnose(run) for run in find_runs(given.path, every=given.all)]
    except (NoJournal, block.BadBlock, OSError) as error:
        print(f"ammeter report: {error}", file=sys.stderr)
        return WRONG_CALL
    if given.json:
        told = [each.as_json() for each in reports]
        print(msgspec.json.format(msgspec.json.encode({"items": told} if given.all else told[0])).decode())
    else:
        from ammeter import report_text

        for each in reports:
            report_text.show(each)
    return PAGE if any(each.paged for each in reports) else FINE


def diagnose(path: Path) -> Report:
    """The report on a run's folder or on one stream's. Raises NoJournal where there is none."""
    report, findings = Report(), []
    ranks: dict[str, int] = {}
    folders = {stream.name: stream for stream in _streams(path)}
    for stream in folders.values():
        counted = Tally(stream.name)
        findings += [(stream.name, finding) for finding in _judge(stream, counted, report.faults)]
        if counted.is_rank:
            ranks[stream.name] = counted.rank
        report.streams.append(counted)
    findings += _judge_ranks(report.streams, folders, report.faults)
    went_on = overall.continued(report.streams)
    present = [each for each in findings if not _is_over(*each, went_on)]
    report.findings = _merged(explain(of_ranks(present, ranks)), ranks)
    report.whole_norm = _whole_norm(report.streams, folders)
    return report


def _is_over(stream: str, finding: Finding, went_on: set[str]) -> bool:
    """A process that died is no loss of the run where its launcher has started it again."""
    return finding.verdict == "run-lost" and stream in went_on


def _whole_norm(streams: Sequence[Tally], folders: Mapping[str, Path]) -> Span:
    """The course of the gradient norm of all shards; of streams without shards nothing is read again."""
    course = Span()
    for life in merging.lives(each.life for each in streams if each.is_rank and each.sharded):
        ranks = {each.rank: _views(folders[each.stream]) for each in life}
        for view in merging.merged(ranks, max(each.world_size for each in life)):
            course.add(view.scalar("grad_norm"))
    return course


def find_runs(path: Path, every: bool = False) -> list[Path]:
    """The stream's or run's folder that a path means; for a folder of runs the newest, or every one by age."""
    if not path.is_dir():
        raise NoJournal(f"{str(path)!r} is no folder; give a run's folder, a stream's, or AMMETER_DIR itself")
    if (path / "alive").exists() or journal.streams(path):
        return [path]
    runs = sorted((each for each in path.iterdir() if each.is_dir() and journal.streams(each)), key=_age)
    if not runs:
        raise NoJournal(
            f"there is no journal in {str(path)!r}; a run that is watched with dir={str(path)!r} writes one"
        )
    return runs if every else runs[-1:]


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter report",
        description="Say what a run's journals hold: what went wrong, why, and what to change.",
        epilog="Exit code: 0 nothing to wake a person for, 3 a page-level finding, 2 no journal there.",
    )
    here = "a stream's folder, a run's, or the folder of all runs, which means its newest (%(default)s)"
    parser.add_argument("path", type=Path, nargs="?", default=settings().dir, help=here)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--all", action="store_true", help="every run in the folder, oldest first")
    return parser.parse_args(argv)


def _streams(path: Path) -> list[Path]:
    found = [path] if (path / "alive").exists() else journal.streams(path)
    if not found:
        raise NoJournal(f"there is no journal in {str(path)!r}")
    return found


def _age(run: Path) -> float:
    return max(path.stat().st_mtime for stream in journal.streams(run) for path in (stream, stream / "alive"))


def _judge(stream: Path, counted: Tally, faults: dict[str, str]) -> Iterator[Finding]:
    """What every verdict concluded at last about one stream."""
    states: dict[str, bytes] = {}
    last: dict[str, Finding] = {}
    for view in _views(stream):
        counted.add(view)
        judged = verdicts.judge(states, view)
        states = judged.states
        faults.update(judged.faults)
        last.update({finding.verdict: finding for finding in judged.findings})
    counted.alive = journal.is_alive(stream)
    tick = Tick(time.time_ns(), counted.alive, counted.last_time, offline=True)
    judged = verdicts.judge(states, block.view(Schema(), (), tick=tick))
    last.update({finding.verdict: finding for finding in judged.findings})
    yield from last.values()


def _judge_ranks(
    streams: Sequence[Tally], folders: Mapping[str, Path], faults: dict[str, str]
) -> Iterator[tuple[str, Finding]]:
    """What the verdicts that compare ranks conclude at last, and the first such rank's stream."""
    by_name = {each.stream: each for each in streams if each.is_rank}
    for life in merging.lives(each.life for each in by_name.values()):
        ranks = {each.rank: by_name[each.stream] for each in life}
        last: dict[str, Finding] = {}
        states: dict[str, bytes] = {}
        for together in _together(ranks, folders):
            judged = verdicts.judge_ranks(states, together)
            states = judged.states
            faults.update(judged.faults)
            last.update({finding.verdict: finding for finding in judged.findings})
        yield from ((ranks[finding.ranks[0]].stream, finding) for finding in last.values())


def _together(ranks: Mapping[int, Tally], folders: Mapping[str, Path]) -> Iterator[Together]:
    if len(ranks) > 1:
        over = [rank for rank, each in ranks.items() if each.state != "running"]
        yield from in_step({rank: _views(folders[each.stream]) for rank, each in ranks.items()}, over)
        yield Together(standings=tuple(each.standing for each in ranks.values()))


def _views(stream: Path) -> Iterator[block.View]:
    """The journal as views of at most ROWS rows, each with one schema."""
    schema: Schema | None = None
    rows: list[Steps] = []
    frames: list[tuple[int, Hello | Event | Lost | Bye]] = []
    for frame in _frames(stream):
        if isinstance(frame, Steps):
            if schema is None or not block.fits(frame, schema):
                frames.append((len(rows), Lost("no-schema", steps=1)))
                continue
            rows.append(frame)
        else:
            if isinstance(frame, Hello) and frame.schema != schema:
                yield block.view(schema or frame.schema, rows, frames)
                schema, rows, frames = frame.schema, [], []
            frames.append((len(rows), frame))
        if len(rows) >= _at_once(schema) or len(frames) >= ROWS:
            yield block.view(schema or Schema(), rows, frames)
            rows, frames = [], []
    yield block.view(schema or Schema(), rows, frames)


def _at_once(schema: Schema | None) -> int:
    """Rows that are judged at a time: few of them where there are very many columns."""
    return min(ROWS, max(1, block.MAX_BLOCK_BYTES // (4 * schema.width + 16))) if schema else ROWS


def _frames(stream: Path) -> Iterator[Frame]:
    for entry in journal.read(stream):
        yield entry.frame


def _merged(explained: Sequence[Explained], ranks: dict[str, int]) -> list[Told]:
    """One entry per verdict; what several ranks have is told once, in the words of the first."""
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
    return {**found, "ranks": sorted(set(told.ranks)), "consequences": consequences}
