"""Time that Ammeter used in the training process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import View

START_STEPS = 64
START_SECONDS = 1.0
"""The start of a run, in which columns are read densely.

Calls are followed for 64 steps, and the reading budgets spend their credit.
"""

MIN_SETTLED_STEPS = 64
"""With fewer settled steps a single reading determines their overhead."""


@dataclass
class Overhead:
    """Overhead of one stream, in nanoseconds.

    The time is split into the start and the settled steps after it. The start ends after START_STEPS steps and
    START_SECONDS of training.
    """

    start_steps: int = 0
    start_ns: int = 0
    settled_steps: int = 0
    settled_ns: int = 0
    settled_steps_ns: int = 0
    """Duration of the settled steps."""
    _trained_ns: int = 0

    def add(self, view: View) -> None:
        ours = _nanoseconds(view.scalar("overhead_seconds"))
        steps = _nanoseconds(view.scalar("step_seconds"))
        trained = self._trained_ns + np.cumsum(steps)
        numbers = self.start_steps + self.settled_steps + np.arange(len(view))
        start = (numbers < START_STEPS) | (trained < START_SECONDS * 1e9)
        self.start_steps += int(start.sum())
        self.start_ns += int(ours[start].sum())
        self.settled_steps += int((~start).sum())
        self.settled_ns += int(ours[~start].sum())
        self.settled_steps_ns += int(steps[~start].sum())
        self._trained_ns = int(trained[-1])


def summary_of(attempts: Sequence[Overhead], seconds: float) -> dict[str, Any]:
    """Returns the overhead of the attempts of a rank, which took so many seconds.

    As a share of all time and of the time of settled steps, and in seconds for the starts.
    """
    start_ns, settled_ns = (sum(getattr(attempt, name) for attempt in attempts) for name in ("start_ns", "settled_ns"))
    settled_steps_ns = sum(attempt.settled_steps_ns for attempt in attempts)
    enough = sum(attempt.settled_steps for attempt in attempts) >= MIN_SETTLED_STEPS
    return {
        "overhead_ratio": share((start_ns + settled_ns) / 1e9, seconds),
        "overhead_settled_ratio": share(settled_ns, settled_steps_ns) if enough else None,
        "overhead_start_seconds": round(start_ns / 1e9, 6),
        "overhead_start_steps": sum(attempt.start_steps for attempt in attempts),
    }


def share(part: float, total: float) -> float | None:
    return round(part / total, 5) if total > 0 else None


def _nanoseconds(seconds: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """Converts to whole nanoseconds, so that sums do not depend on order.

    Unmeasured values become 0.
    """
    known = np.where(np.isfinite(seconds), np.clip(seconds, 0, 1e6), 0)
    return (known.astype(np.float64) * 1e9).astype(np.int64)
