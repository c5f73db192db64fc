"""Assembles the collector's web application from all routers, middleware and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI

from ammeter_server import web
from ammeter_server.api import (
    audit,
    baselines,
    compare,
    events,
    group_comparison,
    heatmap,
    histogram,
    incidents,
    live,
    run_deletion,
    runs,
    series,
    tensors,
    what_if,
)
from ammeter_server.api.handling import channels as alert_channels
from ammeter_server.api.handling import context as incident_context
from ammeter_server.api.handling import directives, reach
from ammeter_server.api.projects import resources as projects
from ammeter_server.api.run_list import sparklines
from ammeter_server.auth import callers, login, project_access, reader_limits, tokens
from ammeter_server.auth.reader_limits import ReaderLimits
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import connect
from ammeter_server.http import pagination, problems
from ammeter_server.http.compression import Compression
from ammeter_server.http.etags import EntityTags
from ammeter_server.http.head_requests import HeadLikeGet
from ammeter_server.http.limits import rate
from ammeter_server.http.limits.body import BodyMemory
from ammeter_server.http.security_headers import SecurityHeaders
from ammeter_server.ingest import endpoint
from ammeter_server.ingest.mailbox import Mailbox
from ammeter_server.ingest.writer_queue import Intake
from ammeter_server.judging.judge import JudgeWorker
from ammeter_server.judging.manual_actions import ManualActions
from ammeter_server.maintenance.worker import MaintenanceWorker
from ammeter_server.notify.channel import open_channels
from ammeter_server.ops import dashboards, health, metrics, openapi, prometheus_rules, runbooks

READ = [Depends(callers.read), Depends(pagination.refuse_nul), Depends(project_access.require_project_access)]
EVERYTHING = [Depends(callers.everything)]
ADMIN = [Depends(callers.admin), Depends(pagination.refuse_nul)]


def create_app(settings: Settings) -> FastAPI:
    """Creates the application on a database that already has the newest schema.

    Its workers start and stop with the application's lifespan.

    Raises:
        SettingsError: A channel cannot be delivered to.
    """
    channels = open_channels(settings)
    context = AppContext(settings, connect(settings.database_url))
    app = FastAPI(
        title="Ammeter collector",
        version=version("ammeter-server"),
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.context = context
    judge_worker = JudgeWorker(context, channels)
    app.state.judge_worker = judge_worker
    app.state.channels = channels
    app.state.maintenance_worker = MaintenanceWorker(context)
    app.state.manual_actions = ManualActions(context.store, judge_worker.judge.outbox_writer)
    app.state.settings = settings
    app.state.token_cache = endpoint.TokenCache()
    app.state.intake = Intake(context)
    app.state.mailbox = Mailbox(context.store)
    app.state.body_memory = BodyMemory()
    app.state.watched = live.Watched(context.store)
    app.state.stream_rates = rate.of_streams()
    app.state.sign_in_rate = login.sign_in_rate()
    app.add_middleware(endpoint.FramesFirst)
    app.add_middleware(EntityTags)
    app.add_middleware(ReaderLimits)
    app.add_middleware(HeadLikeGet)
    app.add_middleware(Compression)
    app.add_middleware(SecurityHeaders)
    problems.register(app)

    app.include_router(health.router)
    app.include_router(login.router)
    app.include_router(endpoint.router)
    for module in (
        runs,
        sparklines,
        baselines,
        events,
        series,
        heatmap,
        tensors,
        histogram,
        what_if,
        compare,
        group_comparison,
        projects,
        incidents,
        incident_context,
        reach,
        alert_channels,
        directives,
        live,
        prometheus_rules,
        dashboards,
    ):
        app.include_router(module.router, dependencies=READ)
    app.include_router(metrics.router, dependencies=EVERYTHING)
    app.include_router(audit.router, dependencies=ADMIN)
    app.include_router(run_deletion.router, dependencies=ADMIN)
    app.include_router(openapi.router)
    app.include_router(runbooks.router)
    app.include_router(web.router)
    app.mount("/static", web.static, name="static")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: AppContext = app.state.context
    reader_limits.set_pool_size()
    tokens.load_file(context.settings, context.store)
    judge: JudgeWorker = app.state.judge_worker
    intake: Intake = app.state.intake
    maintenance: MaintenanceWorker = app.state.maintenance_worker
    intake.start()
    judge.start()
    maintenance.start()
    try:
        yield
    finally:
        intake.stop()
        maintenance.stop()
        judge.stop()
        context.store.close()
