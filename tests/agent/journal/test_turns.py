"""Calls of several threads are made one at a time, and only a close waits for those of others."""

from __future__ import annotations

import threading
import time

from ammeter.journal.turns import Turns

LONG = 60.0


class Handler:
    """Notes what it handles; "slow" takes until it is released."""

    def __init__(self) -> None:
        self.handled: list[str] = []
        self.is_slow, self.release = threading.Event(), threading.Event()

    def __call__(self, item: str) -> bool:
        if item == "slow":
            self.is_slow.set()
            assert self.release.wait(LONG)
        self.handled.append(item)
        return True


def test_a_second_thread_leaves_its_item_to_the_first_and_can_wait_for_it() -> None:
    handler = Handler()
    turns = Turns[str](handler)
    thread = threading.Thread(target=turns.take, args=("slow",), daemon=True)
    thread.start()
    assert handler.is_slow.wait(LONG)
    assert turns.take("last")
    assert [] == handler.handled
    threading.Timer(0.2, handler.release.set).start()
    turns.wait_until(lambda: "last" in handler.handled, LONG)
    assert ["slow", "last"] == handler.handled


def test_the_wait_for_another_thread_has_an_end() -> None:
    handler = Handler()
    turns = Turns[str](handler)
    threading.Thread(target=turns.take, args=("slow",), daemon=True).start()
    assert handler.is_slow.wait(LONG)
    turns.take("last")
    turns.wait_until(lambda: "last" in handler.handled, 0.05)
    assert [] == handler.handled
    handler.release.set()


def test_a_thread_does_not_wait_for_its_own_turn() -> None:
    handled: list[str] = []

    def handle(item: str) -> bool:
        if item == "outer":
            turns.take("inner")
            turns.wait_until(lambda: "inner" in handled, LONG)
        handled.append(item)
        return True

    turns = Turns[str](handle)
    began = time.monotonic()
    turns.take("outer")
    assert ["outer", "inner"] == handled
    assert time.monotonic() - began < LONG
