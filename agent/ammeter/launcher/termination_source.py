"""Determines what requested the end of the command, from signals and the job's environment.

The kernel reports the sender of a signal: a visible process, or 0 for one outside this container. Slurm wakes what it
ends: SIGCONT comes with its SIGTERM.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

GRACE_SECONDS = 120.0
"""Longest time between SIGTERM and the SIGKILL that belongs to it: Slurm and Kubernetes give 30 s, systemd 90 s, a spot
machine 2 minutes."""

TOGETHER_SECONDS = 10.0
"""SIGCONT and SIGTERM within this time are one message of Slurm."""

LIMIT_SECONDS = 60.0
"""Slurm checks time limits about this often. A job that ends this long before the end of its time, or later, may have
reached its limit."""

NOTED = (signal.SIGTERM, signal.SIGCONT)

ENDS = frozenset({signal.SIGTERM, signal.SIGKILL})
"""Signals that end a process on request."""


@dataclass(frozen=True)
class Received:
    """A signal that `ammeter run` received.

    at: monotonic seconds. name: the sender's program, '' for an invisible one.
    """

    number: int
    at: float
    process: int
    name: str


@dataclass
class Asked:
    """The signals received so far.

    One thread appends to the list, and another reads it; nothing is ever removed.
    """

    received: list[Received] = field(default_factory=list)

    def note(self, found: signal.struct_siginfo) -> None:
        if found.si_signo in NOTED:
            name = _name_of(found.si_pid)
            self.received.append(Received(found.si_signo, time.monotonic(), found.si_pid, name))

    def last(self) -> Received | None:
        """Returns the newest SIGTERM of the last GRACE_SECONDS."""
        recent = time.monotonic() - GRACE_SECONDS
        return next((each for each in self.received[::-1] if each.number == signal.SIGTERM and each.at > recent), None)

    def by(self, environment: Mapping[str, str], now: float) -> str:
        """Returns the key of wire.frames.ASKED_TO_END for a process that SIGTERM ended.

        now: seconds since the epoch.
        """
        told = self.last()
        slurm = bool(environment.get("SLURM_JOB_ID"))
        someone_else = told is not None and bool(told.name) and not told.name.startswith("slurm")
        if slurm and not someone_else and _at_its_limit(environment, now):
            return "time-limit"
        if slurm and told is not None and not someone_else and (told.name or self._woken(told)):
            return "slurm"
        if environment.get("KUBERNETES_SERVICE_HOST") and told is not None and told.process == 0:
            return "kubernetes"
        return "sigterm"

    def words(self, killed: bool) -> str:
        """Describes the signals: 'SIGTERM from timeout (process 71), and SIGKILL 30 s later'."""
        told = self.last()
        sender = f" from {told.name} (process {told.process})" if told is not None and told.name else ""
        later = f", and SIGKILL {time.monotonic() - told.at:.0f} s later" if killed and told is not None else ""
        return f"SIGTERM{sender}{later}"

    def _woken(self, told: Received) -> bool:
        return any(
            each.number == signal.SIGCONT and abs(each.at - told.at) <= TOGETHER_SECONDS for each in self.received
        )


def _at_its_limit(environment: Mapping[str, str], now: float) -> bool:
    said = environment.get("SLURM_JOB_END_TIME", "")
    return said.isdecimal() and now >= int(said) - LIMIT_SECONDS


def _name_of(process: int) -> str:
    """Returns the program of a process; '' if it is gone, like `kill`."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip() if process > 0 else ""
    except OSError:
        return ""
