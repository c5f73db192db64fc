"""The part of `ammeter run` inside a training process.

It waits for the first step, finds the optimizer and watches the training. launcher/site/sitecustomize.py starts it
through _ammeter_startup.py. A program that calls ammeter.watch() itself is not watched from here.
"""

from __future__ import annotations

from collections.abc import Callable

from ammeter.environment.settings import disabled, launched
from ammeter.launcher.inside.auto_watch import StandIn
from ammeter.launcher.inside.discovery import Found
from ammeter.watching.handle import auto_watchers

__all__ = ["Found", "arm"]


def arm(note: Callable[..., None]) -> None:
    """Watches the training of this process, from its first step on.

    Call it once, with torch imported.

    note: called with an event and a text for the launcher, such as why nothing is watched here.
    """
    if disabled():
        note("failed", "AMMETER_DISABLE is set")
        return
    stand_in = StandIn(launched(), note)
    auto_watchers.append(stand_in.make_way)
    stand_in.attach()
