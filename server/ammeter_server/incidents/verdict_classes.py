"""Divides verdicts by who can act on them: those who run the machines, or those who train."""

from __future__ import annotations

from typing import Literal

VerdictClass = Literal["ml", "platform"]

PLATFORM = frozenset(
    {
        "agent-blind",
        "broken-in-reduction",
        "kernel-nan",
        "launch-bound",
        "run-lost",
        "run-stalled",
        "sdpa-math",
        "stale-stack",
    }
)
"""Verdicts on hardware, drivers, kernels, and the start and end of processes. A change of the training program rarely
ends them."""


def class_of(verdict: str) -> VerdictClass:
    """Returns the class of a verdict; `ml` for an unknown one."""
    return "platform" if verdict in PLATFORM else "ml"
