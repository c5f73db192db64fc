"""What people would put the same numbers into instead: time series databases, MLflow, a row per sample."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ammeter.wire.columns import Floats, Ints
from bench.collector.ingest import Fed, counted
from bench.collector.servers import Line, MissingError, Part
from bench.collector.synthetic_run import Rank
from bench.common.paths import ROOT

REMOTE_WRITE = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
SAMPLE = 18
"""Bytes of a sample: two tags, its length, a double, and a time in milliseconds, which takes six until 2109."""

MLFLOW_METRICS = 1_000
"""Of one log_batch, which takes no more."""


def remote_write(part: Part, ranks: Sequence[Rank], rows: int, steps: int) -> Fed:
    """Feeds Prometheus' protocol, as large requests as Ammeter's, which is more than Prometheus' own sender does."""
    packed = _snappy()
    values = requests = sent = 0
    sends: list[Callable[[], None]] = []
    for rank in ranks:
        bodies = [bytes(packed(each)) for each in _requests(rank, rows, steps)]
        requests, sent = requests + len(bodies), sent + sum(map(len, bodies))
        values += rank.schema.width * min(steps, rank.steps)
        sends.append(_posting(part.port, bodies))
    return counted(part, sends, values, requests, sent)


def labels_of(rank: Rank) -> list[dict[str, str]]:
    """What names each column there."""
    place = {"run": rank.run, "rank": str(rank.rank)}
    names = [{"__name__": name, **place} for name in rank.schema.scalars]
    return names + [
        {"__name__": stat.replace(".", "_"), **place, "tensor": tensor.name}
        for stat in rank.schema.stats
        for tensor in rank.schema.tensors
    ]


def row_per_sample(folder: Path, rank: Rank, rows: int, steps: int) -> Fed:
    """SQLite without anything before it: no HTTP, no checks, one transaction per batch, as durable as Ammeter's."""
    return _in_a_process("rows", folder, rank, rows, steps)


def mlflow(folder: Path, rank: Rank, rows: int, steps: int) -> Fed:
    """MlflowClient.log_batch into SQLite, without a server between."""
    if import_module("importlib.util").find_spec("mlflow") is None:
        raise MissingError("mlflow is not installed; bench/requirements.txt has it")
    return _in_a_process("mlflow", folder, rank, rows, steps)


def _requests(rank: Rank, rows: int, steps: int) -> Iterator[bytes]:
    """The rank's steps as WriteRequests."""
    labels = [_packed(each) for each in labels_of(rank)]
    view = rank.view
    for begin in range(0, min(steps, rank.steps), rows):
        end = min(begin + rows, rank.steps)
        samples = _samples(view.times[begin:end] // 10**6, view.values[:, begin:end])
        yield b"".join(_field(1, label + sample) for label, sample in zip(labels, samples, strict=True))


def _packed(labels: dict[str, str]) -> bytes:
    pairs = sorted((key.encode(), value.encode()) for key, value in labels.items())
    return b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in pairs)


def _samples(times: Ints, values: Floats) -> list[bytes]:
    """Of each column the bytes of its samples."""
    made = np.empty((*values.shape, SAMPLE), np.uint8)
    made[..., 0], made[..., 1], made[..., 2], made[..., 11] = 0x12, SAMPLE - 2, 0x09, 0x10
    made[..., 3:11] = values.astype("<f8")[..., None].view(np.uint8)
    for place in range(6):
        more = 0x80 if place < 5 else 0
        made[..., 12 + place] = ((times >> (7 * place)) & 0x7F | more).astype(np.uint8)
    return [each.tobytes() for each in made]


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + content


def _posting(port: int, bodies: Sequence[bytes]) -> Callable[[], None]:
    def post() -> None:
        with Line(port) as line:
            for body in bodies:
                line.post("/api/v1/write", body, REMOTE_WRITE)

    return post


def _snappy() -> Callable[[bytes], Any]:
    try:
        found: Callable[[bytes], Any] = import_module("cramjam").snappy.compress_raw
    except ImportError as error:
        raise MissingError("cramjam, which compresses as remote write asks, is not installed") from error
    return found


@dataclass(frozen=True)
class Job:
    """What a process of its own does, so that its CPU time is that of the one way alone."""

    way: str
    folder: Path
    rank: int
    steps: int
    rows: int
    begin: int


def _in_a_process(way: str, folder: Path, rank: Rank, rows: int, steps: int) -> Fed:
    job = Job(way, folder, rank.rank, min(steps, rank.steps), rows, rank.begin)
    command = [sys.executable, "-m", "bench.collector.peers", msgspec.json.encode(job, enc_hook=str).decode()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        raise MissingError(f"{way} failed: {done.stderr[-300:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Fed)


def _do(job: Job) -> Fed:
    rank = Rank("run", job.rank, job.steps, job.begin)
    view, width = rank.view, rank.schema.width
    batches = [(begin, min(begin + job.rows, job.steps)) for begin in range(0, job.steps, job.rows)]
    take = _rows_into(job.folder) if job.way == "rows" else _metrics_into(job.folder, rank)
    cpu, wall = time.process_time(), time.monotonic()
    for begin, end in batches:
        take(view.steps[begin:end], view.times[begin:end], view.values[:, begin:end])
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    stored = sum(each.stat().st_size for each in job.folder.iterdir())
    name = "a row per sample, SQLite" if job.way == "rows" else "MLflow log_batch, SQLite"
    return Fed(name, job.steps * width, len(batches), cpu, cpu, wall, stored, stored, 0)


Take = Callable[[Ints, Ints, Floats], None]


def _rows_into(folder: Path) -> Take:
    database = sqlite3.connect(folder / "rows.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE samples (series INTEGER, step INTEGER, time INTEGER, value REAL, PRIMARY KEY (series, step))"
        " WITHOUT ROWID"
    )

    def take(steps: Ints, times: Ints, values: Floats) -> None:
        rows = [
            (series, step, time, value)
            for series, column in enumerate(values.tolist())
            for step, time, value in zip(steps.tolist(), times.tolist(), column, strict=True)
        ]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
        database.execute("COMMIT")

    return take


def _metrics_into(folder: Path, rank: Rank) -> Take:
    import_module("logging").disable()
    client = import_module("mlflow").MlflowClient(f"sqlite:///{folder}/mlflow.db")
    metric = import_module("mlflow.entities").Metric
    experiment = client.create_experiment("bench", artifact_location=folder.as_uri())
    run = client.create_run(experiment).info.run_id
    names = ["/".join(each[key] for key in ("__name__", "tensor") if key in each) for each in labels_of(rank)]

    def take(steps: Ints, times: Ints, values: Floats) -> None:
        for at, (step, moment) in enumerate(zip(steps.tolist(), times.tolist(), strict=True)):
            said = [
                metric(name, float(value), moment // 10**6, step)
                for name, value in zip(names, values[:, at], strict=True)
            ]
            for begin in range(0, len(said), MLFLOW_METRICS):
                client.log_batch(run, metrics=said[begin : begin + MLFLOW_METRICS])

    return take


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job, dec_hook=lambda _, value: Path(value))
    print(msgspec.json.encode(_do(job)).decode())


if __name__ == "__main__":
    main()
