"""Stores the same values elsewhere: time series databases, MLflow, and a table with a row per sample."""

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
from bench.collector.senders import IngestCost, measure_sends
from bench.collector.servers import Connection, MissingError, Server
from bench.collector.synthetic_run import Rank
from bench.common.paths import ROOT

REMOTE_WRITE = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
SAMPLE_BYTES = 18
"""Two tags, the length, a double, and a time in milliseconds, which has six bytes until 2109."""

MAX_MLFLOW_METRICS = 1_000
"""Limit of log_batch."""


def remote_write(server: Server, ranks: Sequence[Rank], rows: int, steps: int) -> IngestCost:
    """Sends by Prometheus remote write, with as many steps per request as to Ammeter.

    Prometheus' own sender makes smaller requests.
    """
    compress = _snappy()
    values = requests = sent = 0
    sends: list[Callable[[], None]] = []
    for rank in ranks:
        bodies = [bytes(compress(body)) for body in _requests(rank, rows, steps)]
        requests, sent = requests + len(bodies), sent + sum(map(len, bodies))
        values += rank.schema.width * min(steps, rank.steps)
        sends.append(_posting(server.port, bodies))
    return measure_sends(server, sends, values, requests, sent)


def labels_of(rank: Rank) -> list[dict[str, str]]:
    """The labels of each column's series."""
    identity = {"run": rank.run, "rank": str(rank.rank)}
    names = [{"__name__": name, **identity} for name in rank.schema.scalars]
    return names + [
        {"__name__": stat.replace(".", "_"), **identity, "tensor": tensor.name}
        for stat in rank.schema.stats
        for tensor in rank.schema.tensors
    ]


def row_per_sample(folder: Path, rank: Rank, rows: int, steps: int) -> IngestCost:
    """Inserts into SQLite without HTTP or checks, one durable transaction per batch."""
    return _in_own_process("rows", folder, rank, rows, steps)


def mlflow(folder: Path, rank: Rank, rows: int, steps: int) -> IngestCost:
    """Calls MlflowClient.log_batch on SQLite, without a server."""
    if import_module("importlib.util").find_spec("mlflow") is None:
        raise MissingError("mlflow is not installed; see requirements-dev.txt")
    return _in_own_process("mlflow", folder, rank, rows, steps)


def _requests(rank: Rank, rows: int, steps: int) -> Iterator[bytes]:
    """The rank's steps as WriteRequest messages."""
    labels = [_encoded_labels(series) for series in labels_of(rank)]
    view = rank.view
    for begin in range(0, min(steps, rank.steps), rows):
        end = min(begin + rows, rank.steps)
        samples = _encoded_samples(view.times[begin:end] // 10**6, view.values[:, begin:end])
        yield b"".join(_field(1, label + sample) for label, sample in zip(labels, samples, strict=True))


def _encoded_labels(labels: dict[str, str]) -> bytes:
    pairs = sorted((key.encode(), value.encode()) for key, value in labels.items())
    return b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in pairs)


def _encoded_samples(times: Ints, values: Floats) -> list[bytes]:
    """The bytes of each column's samples."""
    encoded = np.empty((*values.shape, SAMPLE_BYTES), np.uint8)
    encoded[..., 0], encoded[..., 1], encoded[..., 2], encoded[..., 11] = 0x12, SAMPLE_BYTES - 2, 0x09, 0x10
    encoded[..., 3:11] = values.astype("<f8")[..., None].view(np.uint8)
    for index in range(6):
        more = 0x80 if index < 5 else 0
        encoded[..., 12 + index] = ((times >> (7 * index)) & 0x7F | more).astype(np.uint8)
    return [column.tobytes() for column in encoded]


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
        with Connection(port) as connection:
            for body in bodies:
                connection.post("/api/v1/write", body, REMOTE_WRITE)

    return post


def _snappy() -> Callable[[bytes], Any]:
    try:
        found: Callable[[bytes], Any] = import_module("cramjam").snappy.compress_raw
    except ImportError as error:
        raise MissingError("cramjam, which compresses for remote write, is not installed") from error
    return found


@dataclass(frozen=True)
class Job:
    """Work of a process of its own, whose CPU time is the cost of this store alone."""

    store: str
    folder: Path
    rank: int
    steps: int
    rows: int
    begin: int


def _in_own_process(store: str, folder: Path, rank: Rank, rows: int, steps: int) -> IngestCost:
    job = Job(store, folder, rank.rank, min(steps, rank.steps), rows, rank.begin)
    command = [sys.executable, "-m", "bench.collector.other_stores", msgspec.json.encode(job, enc_hook=str).decode()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if finished.returncode:
        raise MissingError(f"{store} failed: {finished.stderr[-300:]}")
    return msgspec.json.decode(finished.stdout.splitlines()[-1], type=IngestCost)


def _run(job: Job) -> IngestCost:
    rank = Rank("run", job.rank, job.steps, job.begin)
    view, width = rank.view, rank.schema.width
    batches = [(begin, min(begin + job.rows, job.steps)) for begin in range(0, job.steps, job.rows)]
    store = _row_inserter(job.folder) if job.store == "rows" else _metric_logger(job.folder, rank)
    cpu, wall = time.process_time(), time.monotonic()
    for begin, end in batches:
        store(view.steps[begin:end], view.times[begin:end], view.values[:, begin:end])
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    size = sum(path.stat().st_size for path in job.folder.iterdir())
    name = "a row per sample, SQLite" if job.store == "rows" else "MLflow log_batch, SQLite"
    return IngestCost(name, job.steps * width, len(batches), cpu, cpu, wall, size, size, 0)


StoreBatch = Callable[[Ints, Ints, Floats], None]


def _row_inserter(folder: Path) -> StoreBatch:
    database = sqlite3.connect(folder / "rows.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE samples (series INTEGER, step INTEGER, time INTEGER, value REAL, PRIMARY KEY (series, step))"
        " WITHOUT ROWID"
    )

    def store(steps: Ints, times: Ints, values: Floats) -> None:
        rows = [
            (series, step, time, value)
            for series, column in enumerate(values.tolist())
            for step, time, value in zip(steps.tolist(), times.tolist(), column, strict=True)
        ]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO samples VALUES (?, ?, ?, ?)", rows)
        database.execute("COMMIT")

    return store


def _metric_logger(folder: Path, rank: Rank) -> StoreBatch:
    import_module("logging").disable()
    client = import_module("mlflow").MlflowClient(f"sqlite:///{folder}/mlflow.db")
    metric = import_module("mlflow.entities").Metric
    experiment = client.create_experiment("bench", artifact_location=folder.as_uri())
    run = client.create_run(experiment).info.run_id
    names = ["/".join(labels[key] for key in ("__name__", "tensor") if key in labels) for labels in labels_of(rank)]

    def store(steps: Ints, times: Ints, values: Floats) -> None:
        for index, (step, moment) in enumerate(zip(steps.tolist(), times.tolist(), strict=True)):
            metrics = [
                metric(name, float(value), moment // 10**6, step)
                for name, value in zip(names, values[:, index], strict=True)
            ]
            for begin in range(0, len(metrics), MAX_MLFLOW_METRICS):
                client.log_batch(run, metrics=metrics[begin : begin + MAX_MLFLOW_METRICS])

    return store


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job, dec_hook=lambda _, value: Path(value))
    print(msgspec.json.encode(_run(job)).decode())


if __name__ == "__main__":
    main()
