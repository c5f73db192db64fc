"""What `ammeter run` does inside a process that trains: waits for the first step, finds what steps, and watches it.

Begun by launch/site/sitecustomize.py. A program that calls ammeter.watch() itself is left to it.
"""

from __future__ import annotations

from collections.abc import Callable

from ammeter.environment.settings import disabled, launched
from ammeter.launcher.inside.auto_watch import StandIn
from ammeter.launcher.inside.discovery import Found
from ammeter.watching.handle import auto_watchers

__all__ = ["Found", "arm"]


def arm(note: Callable[..., None]) -> None:
    """Watches the training that this process begins, from its first step on. Call it once, with torch imported.

    note: called with an event and words about it, for the launcher: why nothing is watched here.
    """
    if disabled():
        note("failed", "AMMETER_DISABLE is set")
        return
    stand_in = StandIn(launched(), note)
    auto_watchers.append(stand_in.make_way)
    stand_in.attach()
