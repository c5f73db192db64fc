"""Serializes the calls of several threads without a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic, sleep
from typing import Generic, TypeVar

T = TypeVar("T")

STUCK_SECONDS = 10.0
"""How long another thread may have its turn. After that time the thread counts as interrupted while it acquired the
turn, so the turn will not come back."""


class Turns(Generic[T]):
    """Passes items to one function, one at a time and in order.

    The first thread handles the items of all, and the others do not wait. Only one thread at a time can pop the only
    element of a deque.
    """

    def __init__(self, handle: Callable[[T], bool]) -> None:
        self._handle = handle
        self._waiting: deque[T] = deque()
        self._turn: deque[None] = deque([None])
        self._began = monotonic()
        self._thread = 0

    def take(self, item: T) -> bool:
        """Handles the item, or leaves it to the thread that has its turn.

        Returns:
            What the function returned for this item; True if another thread handles it.
        """
        waiting, result = self._waiting, True
        waiting.append(item)
        while waiting:
            try:
                self._turn.pop()
            except IndexError:
                if monotonic() - self._began < STUCK_SECONDS:
                    return True
            try:
                self._thread = get_ident()
                while waiting:
                    next_item, self._began = waiting.popleft(), monotonic()
                    done = self._handle(next_item)
                    result = done if next_item is item else result
            finally:
                self._thread = 0
                if not self._turn:
                    self._turn.append(None)
        return result

    def wait_until(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Waits at most this long for another thread that handles items; this thread's own turn is not waited for."""
        deadline = monotonic() + seconds
        while not is_done() and self._thread != get_ident() and monotonic() < deadline:
            sleep(0.0005)
