"""The part of `ammeter run` inside a training process.

It waits for the first step, finds the optimizer and watches the training. launcher/site/sitecustomize.py starts it
through _ammeter_startup.py. A program that calls ammeter.watch() itself is not watched from here.
"""

from __future__ import annotations

from collections.abc import Callable

from ammeter.environment.settings import disabled, launched
from ammeter.launcher.inside.auto_watch import AutoWatcher
from ammeter.watching.handle import auto_watchers

__all__ = ["arm"]


def arm(note: Callable[..., None]) -> None:
    """Watches the training of this process, from its first step on.

    Call it once, with torch imported.

    note: called with an event and a text for the launcher, such as why nothing is watched here.
    """
    if disabled():
        note("failed", "AMMETER_DISABLE is set")
        return
    watcher = AutoWatcher(launched(), note)
    auto_watchers.append(watcher.stop)
    watcher.attach()
