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


@dataclass(frozen=True)
class AppContext:
    """Settings, store and in-memory counters of one collector process.

    Durable state is in the store only.

    Attributes:
        judge_wakeup: Set when a commit may have given the judge something to evaluate.
        guesses: Wrong tokens seen by this process.
        quota: Runs and projects counted by this process.
        axes: The places of attempts that this process has read.
    """

    settings: Settings
    store: Store
    judge_wakeup: threading.Event = field(default_factory=threading.Event)
    guesses: TokenGuesses = field(default_factory=TokenGuesses)
    quota: Quota = field(default_factory=Quota)
    axes: RunAxes = field(default_factory=RunAxes)


def app_context(connection: HTTPConnection) -> AppContext:
    context: AppContext = connection.app.state.context
    return context


ContextDep = Annotated[AppContext, Depends(app_context)]
"""The parameter type by which a route receives the context."""
