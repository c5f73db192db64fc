"""GET /metrics: runs and the fleet, read from the tables at scrape time.

GET /metrics/self: this process.

/metrics is the same at every replica and is scraped once; /metrics/self is scraped at each replica.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Request, Response
from prometheus_client import disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector as Registry
from starlette.responses import StreamingResponse

from ammeter_server.context import ContextDep
from ammeter_server.db.engine import Connections, database_file
from ammeter_server.db.queries import metrics as query
from ammeter_server.db.queries import outbox
from ammeter_server.http.problems import Problem
from ammeter_server.process import self_metrics
from ammeter_server.prometheus.exposition import END, Exposition, text
from ammeter_server.prometheus.scrape_process import ScrapeError, ScrapeProcess

log = logging.getLogger(__name__)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.scrape_process = ScrapeProcess(app.state.settings.database_url, app.state.settings.cost_per_hour)
    try:
        yield
    finally:
        app.state.scrape_process.stop()


router = APIRouter(tags=["metrics"], lifespan=_lifespan)

Accept = Annotated[str, Header()]

OPEN = "application/openmetrics-text"

TEXT: dict[str, Any] = {"schema": {"type": "string"}}
ANSWERS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": TEXT, OPEN: TEXT}}}

disable_created_metrics()  # type: ignore[no-untyped-call]


@router.get("/metrics", summary="Runs and fleet for Prometheus", response_class=Response, responses=ANSWERS)
async def read_metrics(request: Request, accept: Accept = "") -> Response:
    """Returns metrics of runs and the fleet as Prometheus text, or as OpenMetrics if accepted."""
    scrape_process: ScrapeProcess = request.app.state.scrape_process
    _, content_type = _encoder_for(accept)
    is_open = content_type.startswith(OPEN)
    try:
        chunks = await scrape_process.text(is_open)
    except ScrapeError as error:
        log.error("a scrape failed: %s", error)  # includes the traceback of the child process
        raise Problem(503, "the scrape failed; see the collector's log, and scrape again") from error
    return _answer([*chunks, END] if is_open else chunks, content_type)


@router.get("/metrics/self", summary="This process for Prometheus", response_class=Response, responses=ANSWERS)
def read_own_metrics(context: ContextDep, request: Request, accept: Accept = "") -> Response:
    """Returns metrics of this collector process and its database."""
    shown = Exposition()
    with context.store.reading() as connection:
        shown.add("ammeter_collector_storage_bytes", query.storage_bytes(connection))
        shown.add("ammeter_collector_outbox_pending", outbox.pending(connection))
        judged = query.judged_last(connection)
    last_round: int = request.app.state.judge_worker.judge.last_round
    waited = time.time_ns() - (last_round if judged is None else min(last_round, judged))
    shown.add("ammeter_collector_judge_lag_seconds", max(0, waited) / 1e9)
    shown.add("ammeter_collector_ingest_waiting", request.app.state.intake.waiting)
    shown.add("ammeter_collector_verdict_delay_seconds", request.app.state.intake.verdict_delay)
    shown.add("ammeter_collector_build_info", 1, version("ammeter-server"))
    shown.add("ammeter_collector_address_info", 1, context.settings.page_url)
    _add_connections(shown, context.store.connections())
    _add_disk(shown, context.settings.database_url)
    encode, content_type = _encoder_for(accept)
    own = text([shown.samples], content_type.startswith(OPEN))
    return _answer([*own, encode(self_metrics.REGISTRY)], content_type)


def _add_connections(shown: Exposition, connections: Connections) -> None:
    shown.add("ammeter_collector_database_connections", connections.used, "used")
    shown.add("ammeter_collector_database_connections", connections.idle, "idle")
    shown.add("ammeter_collector_database_connections_limit", connections.limit)


def _add_disk(shown: Exposition, database_url: str) -> None:
    """Adds size and free space of SQLite's disk.

    The disk of PostgreSQL is not visible to its clients.
    """
    file = database_file(database_url)
    if file is not None:
        disk = os.statvfs(file.parent)
        shown.add("ammeter_collector_storage_disk_bytes", disk.f_blocks * disk.f_frsize)
        shown.add("ammeter_collector_storage_disk_free_bytes", disk.f_bavail * disk.f_frsize)


def _encoder_for(accept: str) -> tuple[Callable[[Registry], bytes], str]:
    """Selects the encoder and the content type by the Accept header.

    An invalid version in the header counts as no header.
    """
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        return choose_encoder("")


def _answer(chunks: Sequence[bytes], content_type: str) -> Response:
    """Streams the chunks, so that the event loop serves other requests while megabytes are sent."""
    headers = {"Content-Type": content_type, "Content-Length": str(sum(map(len, chunks)))}
    return StreamingResponse(_one_by_one(chunks), headers=headers)


async def _one_by_one(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in chunks:
        yield piece
