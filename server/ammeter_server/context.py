"""What every route works with: the settings, the store and the bell that wakes the judge.

A route asks for it by type:  def runs(here: Here) -> ...:  with here.store.reading() as connection: ...
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from ammeter_server.config.settings import Settings
from ammeter_server.db import Store
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.http.limits.token_guesses import Guesses


@dataclass(frozen=True)
class Collector:
    """One collector process. Its state is in the store; the bell only says that there may be something to do,
    guesses what was tried on this process, quota what was counted."""

    settings: Settings
    store: Store
    bell: threading.Event = field(default_factory=threading.Event)
    guesses: Guesses = field(default_factory=Guesses)
    quota: Quota = field(default_factory=Quota)


def collector(connection: HTTPConnection) -> Collector:
    found: Collector = connection.app.state.collector
    return found


Here = Annotated[Collector, Depends(collector)]
