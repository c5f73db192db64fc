"""The state of one collector process that routes and workers share.

A route receives it by type:  def runs(context: ContextDep) -> ...:  with context.store.reading() as connection: ...
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from ammeter_server.config.settings import Settings
from ammeter_server.curves.run_axis import RunAxes
from ammeter_server.db import Store
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.http.limits.token_guesses import TokenGuesses
from ammeter_server.runs.encoded_runs import EncodedRuns


@dataclass(frozen=True)
class AppContext:
    """Settings, store and in-memory counters of one collector process.

    Durable state is in the store only.

    Attributes:
        judge_wakeup: Set when a commit may have given the judge something to evaluate.
        guesses: Wrong tokens seen by this process.
        quota: Runs and projects counted by this process.
        axes: The places of attempts that this process has read.
        encoded_runs: The JSON of runs that this process has read.
    """

    settings: Settings
    store: Store
    judge_wakeup: threading.Event = field(default_factory=threading.Event)
    guesses: TokenGuesses = field(default_factory=TokenGuesses)
    quota: Quota = field(default_factory=Quota)
    axes: RunAxes = field(default_factory=RunAxes)
    encoded_runs: EncodedRuns = field(default_factory=EncodedRuns)


def app_context(connection: HTTPConnection) -> AppContext:
    context: AppContext = connection.app.state.context
    return context


async def context_of(connection: HTTPConnection) -> AppContext:
    """The same for a route. A coroutine, because FastAPI calls other functions in a thread."""
    return app_context(connection)


ContextDep = Annotated[AppContext, Depends(context_of)]
"""The parameter type by which a route receives the context."""
