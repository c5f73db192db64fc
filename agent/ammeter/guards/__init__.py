"""Opt-in actions in the training process, the only part of Ammeter that changes runs.

`ammeter.watch(model, optimizer, scaler, guards=[ammeter.guards.Scale(), ammeter.guards.Stop()])`. Guards act between
two steps and record their actions as `guard.acted` events. A guard that raises is switched off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ammeter.guards.checkpoint import Checkpoint
from ammeter.guards.incident import OnIncident
from ammeter.guards.precision import Precision
from ammeter.guards.scale import Scale
from ammeter.guards.stop import Stop, Stopped

__all__ = ["Checkpoint", "OnIncident", "Precision", "Scale", "Stop", "Stopped"]

KINDS = (Scale, Precision, Checkpoint, Stop, OnIncident)


def checked(given: Any, models: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the validated guards of watch(). Raises TypeError or ValueError for invalid arguments."""
    if not isinstance(given, list | tuple):
        raise TypeError(f"guards is a {type(given).__name__}; watch() takes a list, such as [ammeter.guards.Stop()]")
    for at, guard in enumerate(given):
        if not isinstance(guard, KINDS):
            names = ", ".join(kind.__name__ for kind in KINDS)
            raise TypeError(
                f"guards[{at}] is a {type(guard).__name__}; use the guards of ammeter.guards: {names}, such as"
                " ammeter.guards.Stop()"
            )
        if not isinstance(guard, OnIncident) and any(type(other) is type(guard) for other in given[:at]):
            raise ValueError(f"guards has two of {type(guard).__name__}; one is enough, leave the other out")
        if isinstance(guard, Precision):
            guard.check(models)
    return tuple(given)
