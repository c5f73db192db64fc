"""Background threads of the collector, and the guard that keeps their work going after an error."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ammeter_server.db import StoreAwayError, StoreBrokenError, StoreFullError, StoreRefusingError

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Worker(ABC):
    """Runs rounds of work in a thread, from start() to stop().

    Args:
        name: Of the thread.
        wakeup: Starts the next round at once when it is set.
    """

    def __init__(self, name: str, wakeup: threading.Event | None = None) -> None:
        self._wakeup = wakeup or threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def run_round(self, now: int) -> float:
        """Runs one round at the time `now`, in ns. Returns the seconds until the next one."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the work in progress. Idempotent."""
        self._stopped.set()
        self._wakeup.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wakeup.wait(self.run_round(time.time_ns()))
            self._wakeup.clear()


def attempt(task: str, work: Callable[[], Result]) -> Result | None:
    """Returns the result of the work; logs an error and returns None, because the next round retries it."""
    try:
        return work()
    except (StoreBrokenError, StoreRefusingError):  # the store logs it itself, once a minute
        return None
    except (StoreFullError, StoreAwayError) as error:
        log.warning("%s waits: %s", task, error)
        return None
    except Exception:  # the thread survives unexpected errors
        log.exception("%s failed; the next round retries it", task)
        return None
