"""What `ammeter run` does inside a process that trains: waits for the first step, finds what steps, and watches it.

Begun by launch/site/sitecustomize.py. A program that calls ammeter.watch() itself is left to it.
"""

from __future__ import annotations

from ammeter.inside.finding import Found
from ammeter.inside.standin import StandIn
from ammeter.run import stand_ins
from ammeter.settings import disabled, launched

__all__ = ["Found", "arm"]


def arm() -> None:
    """Watches the training that this process begins, from its first step on. Call it once, with torch imported."""
    if disabled():
        return
    stand_in = StandIn(launched())
    stand_ins.append(stand_in.make_way)
    stand_in.attach()
