"""One stream, one judgement: the collector as batches arrive, the report over the files, and whoever cuts it elsewhere.

What depends on the clock of whoever looks is left out, and only that: run-lost and run-stalled of a process that said
no goodbye. Live they are reached when nothing was heard for a while, offline when nobody holds the journal any more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter import journal, verdicts
from ammeter.journal import Entry
from ammeter.report import diagnosis
from ammeter.report.stream_summary import StreamSummary
from ammeter.shipper.packing import build_payload
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.codec import encode_batch
from ammeter.wire.frames import CONTENT_TYPE, Batch, Bye, Hello, Schema
from ammeter_server.db import Store, connect
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import judge
from tests import forked
from tests.agent.report.reporting import written
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import views
from tests.agent.streams import BROKEN, HEALTHY
from tests.agent.verdicts.test_all import chaos
from tests.server.feeding import serving

ROOT = Path(__file__).resolve().parents[2]
BY_THE_CLOCK = {"run-lost", "run-stalled"}

Found = dict[str, Any]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Store]]:
    """A collector that is asked over HTTP, and its database."""
    folder = tmp_path_factory.mktemp("collector")
    with serving(folder) as client:
        store = connect(f"sqlite:///{folder / 'collector.db'}")
        yield client, store
        store.close()


def entries_of(folder: Path) -> list[Entry]:
    return list(journal.read(folder))


def said_goodbye(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry.frame, Bye) for entry in entries)


def live(collector: tuple[httpx.Client, Store], entries: Sequence[Entry], cuts: Sequence[int]) -> Found:
    """What stands in the database once the entries arrived in batches, cut before those with these indices."""
    client, store = collector
    run, stream = str(uuid.uuid4()), uuid.uuid4().hex
    schema: Schema | None = None
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(entries)}), len(entries)]
    for first, last in pairwise(bounds):
        batch = [renamed(entry, run, stream) for entry in entries[first:last]]
        made = build_payload(batch, schema)
        post(client, f"/api/v1/runs/{run}/streams/{stream}/frames", batch, made.items, made.gaps)
        hellos = [entry.frame.schema for entry in batch if isinstance(entry.frame, Hello)]
        schema = hellos[-1] if hellos else schema
    with store.reading() as connection:
        return {row.verdict: row.body for row in judge.findings_of(connection, run)}


def renamed(entry: Entry, run: str, stream: str) -> Entry:
    """The same stream under a name of its own."""
    if isinstance(entry.frame, Hello):
        frame = msgspec.structs.replace(entry.frame, run=run, stream=stream)
        return msgspec.structs.replace(entry, frame=frame)
    return entry


def post(client: httpx.Client, path: str, batch: Sequence[Entry], items: Any, gaps: Any) -> None:
    body = encode_batch(Batch(items=items, gaps=gaps, alive=True))
    place = {"offset": batch[0].begin, "end": batch[-1].end}
    answer = client.post(path, params=place, content=body, headers={"Content-Type": CONTENT_TYPE})
    assert 200 == answer.status_code, answer.text


def offline(folder: Path) -> Found:
    """What the report concludes from the same journal."""
    faults: dict[str, str] = {}
    found = {finding.verdict: stored(finding) for finding in diagnosis._judge(folder, StreamSummary(""), faults)}
    assert {} == faults
    return found


def replayed(entries: Sequence[Entry], cuts: Sequence[int]) -> Found:
    """What all verdicts conclude over the frames, cut elsewhere."""
    states: dict[str, bytes] = {}
    found: Found = {}
    for view in views([entry.frame for entry in entries], cuts):
        judged = verdicts.judge(states, view)
        assert {} == judged.faults
        states = judged.states
        found |= {finding.verdict: stored(finding) for finding in judged.findings}
    return found


def stored(finding: Finding) -> Any:
    """As a database holds it."""
    return plain(msgspec.structs.asdict(finding))


def judged_alike(
    collector: tuple[httpx.Client, Store], folder: Path, cuts: Sequence[int], others: Sequence[int]
) -> Found:
    """What it comes to, once all ways have come to the same."""
    entries = entries_of(folder)
    left_out = set() if said_goodbye(entries) else BY_THE_CLOCK
    ways = [live(collector, entries, cuts), offline(folder), replayed(entries, others)]
    known = [{name: body for name, body in way.items() if name not in left_out} for way in ways]
    assert known[0] == known[1]
    assert known[1] == known[2]
    return known[0]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_judged_alike(name: str, tmp_path: Path, collector: tuple[httpx.Client, Store]) -> None:
    folder = written(BROKEN[name](), tmp_path)
    found = judged_alike(collector, folder, range(0, 10_000, 37), range(0, 10_000, 23))
    assert name in found or name in BY_THE_CLOCK


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_stream_in_any_batches_is_judged_alike(data: st.DataObject, collector: tuple[httpx.Client, Store]) -> None:
    made = data.draw(st.one_of(chaos(), st.sampled_from(sorted({**BROKEN, **HEALTHY})).map(made_by_name)))
    made.frames = made.frames[:400]
    if data.draw(st.booleans()) and not any(isinstance(frame, Bye) for frame in made.frames):
        made.bye()
    cuts, others = (data.draw(st.lists(st.integers(1, len(made.frames)), max_size=6)) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        judged_alike(collector, written(made, Path(folder)), cuts, others)


def made_by_name(name: str) -> Stream:
    return {**BROKEN, **HEALTHY}[name]()


FAULTS = ("nonfinite-gradient", "clip-before-unscale", "run-lost")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The journals of a process each that trained with such a fault."""
    folder = tmp_path_factory.mktemp("recorded")
    started = {fault: trained(folder / fault, fault) for fault in FAULTS}
    for fault, process in started.items():
        assert process.wait(120) == (-9 if fault == "run-lost" else 0)
    return {fault: journal.streams(next((folder / fault).iterdir()))[0] for fault in FAULTS}


def trained(folder: Path, fault: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "trainer/broken.py", "--tiny", "--steps", "60", "--eval-every", "1000", "--fault", fault]
    environment = {**os.environ, "AMMETER_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return forked.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("size", [2, 50, 10_000])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_journal_of_a_real_run_is_judged_alike(
    fault: str, size: int, recorded: dict[str, Path], collector: tuple[httpx.Client, Store]
) -> None:
    found = judged_alike(collector, recorded[fault], range(0, 10_000, size), range(0, 10_000, 3 * size))
    assert fault in found or fault in BY_THE_CLOCK


def test_of_a_process_without_goodbye_only_what_the_clock_says_differs(
    recorded: dict[str, Path], collector: tuple[httpx.Client, Store]
) -> None:
    entries = entries_of(recorded["run-lost"])
    assert not said_goodbye(entries)
    assert {} == live(collector, entries, ())
    assert ["run-lost"] == list(offline(recorded["run-lost"]))
