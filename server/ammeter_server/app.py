"""The collector as a web application: a table of contents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import Depends, FastAPI

from ammeter_server import (
    audit,
    auth,
    boards,
    compare,
    deletion,
    events,
    health,
    incidents,
    ingest,
    live,
    matrix,
    metrics,
    openapi,
    pace,
    page,
    pagination,
    problems,
    reach,
    readers,
    rules,
    runbooks,
    runs,
    series,
    session,
    spectrum,
    tensors,
    tokens,
)
from ammeter_server.admission import Admission
from ammeter_server.channels import open_channels
from ammeter_server.collector import Collector
from ammeter_server.etags import EntityTags
from ammeter_server.head import HeadLikeGet
from ammeter_server.headers import SecurityHeaders
from ammeter_server.intake import Intake
from ammeter_server.keeper import Keeper
from ammeter_server.readers import Readers
from ammeter_server.request_body import Held
from ammeter_server.settings import Settings
from ammeter_server.store import connect
from ammeter_server.sweeper import Sweeper

READ = [Depends(auth.read), Depends(pagination.sayable), Depends(reach.own)]
EVERYTHING = [Depends(auth.everything)]
ADMIN = [Depends(auth.admin), Depends(pagination.sayable)]


def create_app(settings: Settings) -> FastAPI:
    """The application over a database that already has the newest shape. Its sweeper lives in its lifespan.

    Raises SettingsError for a channel that nobody can deliver to.
    """
    channels = open_channels(settings)
    collector = Collector(settings, connect(settings.database_url))
    app = FastAPI(
        title="Ammeter collector",
        version=version("ammeter-server"),
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.collector = collector
    app.state.sweeper = Sweeper(collector, channels)
    app.state.keeper = Keeper(collector)
    app.state.judge = app.state.sweeper.judge
    app.state.settings = settings
    app.state.admission = Admission()
    app.state.intake = Intake(collector)
    app.state.held = Held()
    app.state.watched = live.Watched(collector.store)
    app.state.pace = pace.of_streams()
    app.state.sign_ins = session.pace_of_sign_ins()
    app.add_middleware(ingest.FramesFirst)
    app.add_middleware(EntityTags)
    app.add_middleware(Readers)
    app.add_middleware(HeadLikeGet)
    app.add_middleware(SecurityHeaders)
    problems.register(app)

    app.include_router(health.router)
    app.include_router(session.router)
    app.include_router(ingest.router)
    for module in (runs, events, series, matrix, tensors, spectrum, compare, incidents, live, rules, boards):
        app.include_router(module.router, dependencies=READ)
    app.include_router(metrics.router, dependencies=EVERYTHING)
    app.include_router(audit.router, dependencies=ADMIN)
    app.include_router(deletion.router, dependencies=ADMIN)
    app.include_router(openapi.router)
    app.include_router(runbooks.router)
    app.include_router(page.router)
    app.mount("/static", page.static, name="static")
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    collector: Collector = app.state.collector
    readers.settle()
    tokens.load_file(collector.settings, collector.store)
    sweeper: Sweeper = app.state.sweeper
    intake: Intake = app.state.intake
    keeper: Keeper = app.state.keeper
    intake.start()
    sweeper.start()
    keeper.start()
    try:
        yield
    finally:
        intake.stop()
        keeper.stop()
        sweeper.stop()
        collector.store.close()
