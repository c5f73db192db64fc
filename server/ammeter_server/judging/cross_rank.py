"""Evaluates a run as a whole: its ranks against each other, and the run against its baseline.

It reads outside the judge's transaction, which stores the result.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.rank_alignment import VITALS, AlignedSteps, Standing, align_steps, standing_of
from ammeter.wire.ranks import Life, lives
from ammeter_server.curves.run_histories import RunHistoryCache
from ammeter_server.db import Row, Store
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import judge
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.db.queries.steps.sources import stored_lives
from ammeter_server.db.queries.steps.stream_info import ColumnSelection
from ammeter_server.judging import baseline
from ammeter_server.process import self_metrics
from ammeter_server.runs.baselines import baseline_name

VITAL_COLUMNS = ColumnSelection(VITALS)

MAX_READ_SECONDS = 0.5
"""Reading time of one evaluation, while other runs wait. The rest is read in the next evaluation."""

DUE_NOW = {"judged_version": -1}
"""Values of a run's row that make it due at once."""

SILENCE_NS = 15 * 10**9
"""After this the position of a rank is unknown: seven missed heartbeats of its shipper."""


@dataclass(frozen=True)
class RunEvaluation:
    """findings: each with its stream. values: new values of the run's row."""

    findings: list[tuple[str, Finding]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def continues(self) -> bool:
        """Whether data is left to read, which makes the run due at once."""
        return DUE_NOW.items() <= self.values.items()


def evaluate_run(store: Store, histories: RunHistoryCache, run: str, now: int) -> RunEvaluation:
    """Evaluates a run across its ranks and its baseline, from the state of its last evaluation."""
    with store.reading() as connection:
        row = judge.run_unlocked(connection, run)
        if row is None or not (row.world_size > 1 or row.evaluation or baseline_name(row)):
            return RunEvaluation()
        streams = {stream.id: stream for stream in judge.streams_of(connection, run)}
        # a stream that was added between the two queries is included next time: its version makes the run due
        together = lives(life for life in stored_lives(connection, run) if life.stream in streams)
    version = sum(stream.version for stream in streams.values())  # without data that arrives from now on
    judged_version = {"judged_version": version}
    if not together:
        return RunEvaluation(values=judged_version)
    of_ranks = _evaluate_ranks(store, row, streams, together[-1], now) if len(together[-1]) > 1 else RunEvaluation()
    compared = baseline.evaluate_baseline(
        store, histories, row, row.evaluation.get("baseline", {}), time.monotonic() + MAX_READ_SECONDS
    )
    findings = [*of_ranks.findings, *((together[-1][0].stream, finding) for finding in compared.findings.values())]
    stored = {"baseline": compared.stored} if compared.stored else {}
    conclusions = {**row.evaluation, **of_ranks.values.pop("evaluation", {}), **stored}
    return RunEvaluation(
        findings,
        {**judged_version, **of_ranks.values, "evaluation": conclusions, **({} if compared.finished else DUE_NOW)},
    )


def _evaluate_ranks(
    store: Store, row: Row[Any], streams: Mapping[str, Row[Any]], life: Sequence[Life], now: int
) -> RunEvaluation:
    """Compares the ranks of the current attempt from the last evaluated step.

    It starts over when a rank is added or all were restarted; earlier findings become inactive.
    """
    ranks = {member.rank: streams[member.stream] for member in life}
    name = blake2b("".join(rank.id for rank in ranks.values()).encode(), digest_size=8).hexdigest()
    before = row.evaluation.get("ranks", {})
    same = before.get("life") == name
    states = msgspec.msgpack.decode(row.states, type=dict[str, bytes]) if same and row.states else {}
    known = {verdict: msgspec.convert(body, Finding) for verdict, body in before.get("findings", {}).items()}
    earlier = before.get("earlier", {}) if same else {finding.verdict: finding.times for finding in known.values()}
    inactive = {verdict: msgspec.structs.replace(finding, active=False) for verdict, finding in known.items()}
    findings = known if same else inactive
    reached = before.get("reached", -1) if same else -1
    until, finished = time.monotonic() + MAX_READ_SECONDS, True
    for aligned in _aligned_steps(store, row.id, ranks, reached, now):
        judged = verdicts.judge_ranks(states, aligned)
        states = judged.states
        for finding in judged.findings:
            times = finding.times + earlier.get(finding.verdict, 0)
            findings[finding.verdict] = msgspec.structs.replace(finding, times=times)
        self_metrics.count_faults(judged.faults)
        reached = int(aligned.steps[-1]) if len(aligned) else reached
        if len(aligned) and time.monotonic() > until:
            finished = False
            break
    as_json = {verdict: plain(msgspec.structs.asdict(finding)) for verdict, finding in findings.items()}
    concluded = {"life": name, "reached": reached, "earlier": earlier, "findings": as_json}
    values = {
        "evaluation": {"ranks": concluded},
        "states": msgspec.msgpack.encode(states),
        **({} if finished else DUE_NOW),
    }
    return RunEvaluation([(_stream(ranks, finding), finding) for finding in findings.values()], values)


def _aligned_steps(
    store: Store, run: str, ranks: Mapping[int, Row[Any]], reached: int, now: int
) -> Iterator[AlignedSteps]:
    """Yields the steps that all ranks have and that are not evaluated yet, then the position of each rank."""
    over = [rank for rank, stream in ranks.items() if stream.bye_reason is not None]
    views_of_ranks = {
        rank: views(store, run, stream.id, reached + 1, None, VITAL_COLUMNS) for rank, stream in ranks.items()
    }
    yield from align_steps(views_of_ranks, over, reached)
    known = [rank for rank in ranks.values() if rank.last_step is not None and _is_known(rank, now)]
    if len(known) == len(ranks):
        yield AlignedSteps(standings=tuple(_standing(stream) for stream in known))


def _is_known(stream: Row[Any], now: int) -> bool:
    """Whether the stored last row is the last row of the rank."""
    return stream.bye_reason is not None or (
        stream.last_seen >= now - SILENCE_NS and not stream.backlog and stream.alive
    )


def _standing(stream: Row[Any]) -> Standing:
    ended = stream.bye.get("time") if stream.bye_reason is not None else None
    by_itself = stream.bye_reason in ("closed", "exit")
    return standing_of(stream.rank, stream.last_step, stream.last_step_time, ended, by_itself)


def _stream(ranks: Mapping[int, Row[Any]], finding: Finding) -> str:
    """The stream of the finding's first rank; the lowest rank's where that rank is gone."""
    stream: str = ranks[next((rank for rank in finding.ranks if rank in ranks), min(ranks))].id
    return stream
