"""A running collector, and streams that send it real requests like the shipper's."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn.server
from fastapi import routing

from ammeter.wire import codec, columns, frames
from ammeter.wire.frames import Batch, Bye, Event, Hello, Schema, Tensor
from ammeter_server.app import create_app
from ammeter_server.config.settings import Settings
from ammeter_server.http.server import config
from tests.server.databases import migrate

BEGIN = 1_760_000_000 * 10**9
STEP = 10**8
TENSORS = (
    Tensor("embed.weight", (64, 16), "float32"),
    Tensor("blocks.0.mlp.fc.weight", (64, 16), "float32"),
    Tensor("blocks.1.mlp.fc.weight", (64, 16), "float32"),
    Tensor("head.weight", (64, 16), "float32"),
)
SCHEMA = Schema(tuple(frames.SCALARS), tuple(frames.STATS), TENSORS)

Row = dict[str, Any]

_build_route = routing._EffectiveRouteContext.from_api_route
_built_routes: dict[tuple[object, ...], Any] = {}


def _shared_route(*, original_route: routing.APIRoute, include_context: Any) -> Any:
    """Builds a route once per process. FastAPI builds all again for every application, which takes 0.1 s."""
    key = (id(original_route), include_context.path_for(original_route), *map(id, include_context.dependencies))
    if key not in _built_routes:
        _built_routes[key] = _build_route(original_route=original_route, include_context=include_context)
    return _built_routes[key]


routing._EffectiveRouteContext.from_api_route = _shared_route  # type: ignore[method-assign]


class _PromptAsyncio:
    """asyncio whose sleeps are short: uvicorn checks every 0.1 s whether to stop, and waits as long when it stops."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


uvicorn.server.asyncio = _PromptAsyncio()  # type: ignore[assignment, attr-defined]


def curves(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the items of an answer about series, each with its own steps and times."""
    return [{**item, **told["axes"][item["axis"]]} for item in told["items"]]


@contextmanager
def serving(folder: Path, database: str = "", **settings: Any) -> Iterator[httpx.Client]:
    """Runs a collector on a free port, with all its workers; yields a client.

    database: the URL of an empty one; by default an SQLite file in the folder.
    """
    url = database or f"sqlite:///{folder / 'collector.db'}"
    migrate(url)
    # asyncio sets TCP_NODELAY only for a named protocol; without it every answer takes 40 ms
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = create_app(Settings(database_url=url, port=port, **settings))
        server = uvicorn.Server(config(app, app.state.settings, timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            # verify=False: plain HTTP needs no certificates, whose reading takes longer than most requests
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def wait_until(true: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Waits for a condition and returns its value. Fails after the timeout."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)
    return found


@dataclass
class Stream:
    """A rank's growing stream. tell() adds a step, send() posts everything since the last call."""

    client: httpx.Client
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)
    rank: int = 0
    world_size: int = 1
    name: str = "nightly"
    project: str = "demo"
    begin: int = BEGIN
    schema: Schema = SCHEMA
    config: dict[str, Any] = field(default_factory=lambda: {"lr": 3e-4, "precision": "fp16"})
    tags: dict[str, str] = field(default_factory=lambda: {"team": "speech"})
    environment: dict[str, str] = field(default_factory=lambda: {"torch": "2.13.0", "device": "NVIDIA H200"})
    offset: int = 0
    items: list[frames.Item] = field(default_factory=list)
    rows: list[frames.Steps] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def hello(self) -> Hello:
        return Hello(
            run=self.run,
            stream=self.stream,
            schema=self.schema,
            rank=self.rank,
            world_size=self.world_size,
            host="node-1",
            pid=4711,
            started=self.begin,
            name=self.name,
            project=self.project,
            config=self.config,
            tags=self.tags,
            environment=self.environment,
        )

    def time(self, step: int) -> int:
        return self.begin + step * STEP

    def tell(self, step: int, scalars: Mapping[str, float], stats: Mapping[str, Any] | None = None) -> None:
        """Adds a row. stats: name -> one value for all tensors, or {tensor: value}."""
        values = np.full(self.schema.width, columns.ABSENT, np.float32)
        for name, value in scalars.items():
            values[self.schema.scalars.index(name)] = value
        for stat, given in (stats or {}).items():
            span = self.schema.span(stat)
            for index, tensor in enumerate(self.schema.tensors):
                values[span.start + index] = (
                    given.get(tensor.name, columns.ABSENT) if isinstance(given, dict) else given
                )
        self.rows.append(frames.Steps(step, self.time(step), values.astype("<f4").tobytes()))

    def say(self, name: str, step: int, **data: Any) -> None:
        """Adds an event after the current rows."""
        self.pack()
        self.items.append(Event(name, step, self.time(step), data))

    def bye(self, step: int, reason: Any = "closed") -> None:
        self.pack()
        self.items.append(Bye(reason, step, self.time(step)))

    def send(self, **batch: Any) -> httpx.Response:
        """Posts the batch, and expect it to be accepted."""
        self.pack()
        items = [self.hello(), *self.items] if self.offset == 0 else self.items
        end = self.offset + 100 * (len(items) + len(batch.get("gaps", ())))
        answer = self.client.post(
            f"/api/v1/runs/{self.run}/streams/{self.stream}/frames?offset={self.offset}&end={end}",
            content=codec.encode_batch(Batch(items=list(items), **batch)),
            headers={"Content-Type": frames.CONTENT_TYPE, **self.headers},
        )
        assert answer.status_code == 200, answer.text
        self.offset, self.items = end, []
        return answer

    def pack(self) -> None:
        """Packs the current rows into a block."""
        if self.rows:
            self.items.append(columns.pack(columns.view(self.schema, self.rows)))
            self.rows = []


def train(stream: Stream, first: int, last: int, scale: float = 65536.0) -> None:
    """Adds healthy float16 steps: a falling loss, a noisy norm, sampled stats every tenth step."""
    if first == 0:
        stream.say("scaler.seen", 0, enabled=True, device="cpu", scale=scale)
        stream.say("autocast.entered", 0, device="cpu", dtype="float16", grad=True)
    for step in range(first, last + 1):
        norm = 1.2 + 0.4 * math.sin(step * 1.7) + 3.0 * math.exp(-step / 20)
        row: Row = {
            "scale": scale,
            "growth_tracker": step % 2000,
            "found_inf": 0.0,
            "applied": 1.0,
            "skipped": 0.0,
            "loss": 4.2 * math.exp(-step / 90) + 1.1 + 0.05 * math.sin(step * 2.3),
            "samples": 32.0,
            "grad_norm": norm,
            "grad_nonfinite": 0.0,
            "micro_batches": 1.0,
            "step_seconds": 0.1,
            "overhead_seconds": 0.0005,
        }
        if step % 25 == 0:
            row["val_loss"] = row["loss"] + 0.2
        stats: dict[str, Any] = {"grad.norm": norm / 2}
        if step % 10 == 0:
            row["grad_absmax"] = 0.02
            stats |= {"grad.absmax": 0.02, "grad.zeros": 8, "grad.subnormals": 16, "grad.fp16_grid": 1.0}
        stream.tell(step, row, stats)


def break_down(stream: Stream, first: int, last: int, tensor: str = "blocks.1.mlp.fc.weight") -> None:
    """Adds steps with NaN gradients up to one tensor, each skipped and halving the scale."""
    order = [each.name for each in stream.schema.tensors]
    broken = order[: order.index(tensor) + 1]
    finite = len(order) - len(broken)
    for count, step in enumerate(range(first, last + 1)):
        scale = 65536.0 / 2**count
        row: Row = {
            "scale": scale,
            "found_inf": 1.0,
            "applied": 0.0,
            "skipped": 1.0,
            "loss": 1.4,
            "samples": 32.0,
            "grad_norm": math.nan,
            "grad_nonfinite": 1024.0 * len(broken),
            "step_seconds": 0.1,
            "overhead_seconds": 0.0005,
        }
        nans = {name: (1024.0 if name in broken else 0.0) for name in order}
        norms = {name: (math.nan if name in broken else 0.5) for name in order}
        stream.tell(step, row, {"grad.norm": norms, "grad.nans": nans, "grad.infs": dict.fromkeys(order, 0.0)})
        stream.say(
            "gradient.nonfinite",
            step,
            tensors=[{"tensor": name, "nans": 1024, "infs": 0} for name in broken],
            count=len(broken),
            last=tensor,
            finite_after=finite,
            finite=finite,
            scaled=True,
        )
        stream.say("step.skipped", step, scale=scale, consecutive=count + 1)
        stream.say("scaler.backoff", step, **{"from": scale, "to": scale / 2})
