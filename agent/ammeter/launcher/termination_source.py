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

RECORDED_SIGNALS = (signal.SIGTERM, signal.SIGCONT)

ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGKILL})
"""Signals that end a process on request."""


@dataclass(frozen=True)
class Received:
    """A signal that `ammeter run` received.

    at: monotonic seconds. sender: process id. sender_name: the sender's program, '' for an invisible one.
    """

    number: int
    at: float
    sender: int
    sender_name: str


@dataclass
class SignalRecord:
    """The signals received so far.

    One thread appends to the list, and another reads it; nothing is ever removed.
    """

    received: list[Received] = field(default_factory=list)

    def add(self, info: signal.struct_siginfo) -> None:
        if info.si_signo in RECORDED_SIGNALS:
            name = _name_of(info.si_pid)
            self.received.append(Received(info.si_signo, time.monotonic(), info.si_pid, name))

    def last_sigterm(self) -> Received | None:
        """Returns the newest SIGTERM of the last GRACE_SECONDS."""
        earliest = time.monotonic() - GRACE_SECONDS
        sigterms = (got for got in self.received[::-1] if got.number == signal.SIGTERM and got.at > earliest)
        return next(sigterms, None)

    def ended_by(self, environment: Mapping[str, str], now: float) -> str:
        """Returns the key of wire.frames.REQUESTED_ENDS for a process that SIGTERM ended.

        now: seconds since the epoch.
        """
        sigterm = self.last_sigterm()
        in_slurm = bool(environment.get("SLURM_JOB_ID"))
        name = sigterm.sender_name if sigterm is not None else ""
        from_other_program = bool(name) and not name.startswith("slurm")
        if in_slurm and not from_other_program and _at_time_limit(environment, now):
            return "time-limit"
        if in_slurm and sigterm is not None and not from_other_program and (name or self._with_sigcont(sigterm)):
            return "slurm"
        if environment.get("KUBERNETES_SERVICE_HOST") and sigterm is not None and sigterm.sender == 0:
            return "kubernetes"
        return "sigterm"

    def describe(self, killed: bool) -> str:
        """Describes the signals: 'SIGTERM from timeout (process 71), and SIGKILL 30 s later'."""
        sigterm = self.last_sigterm()
        if sigterm is None:
            return "SIGTERM"
        sender = f" from {sigterm.sender_name} (process {sigterm.sender})" if sigterm.sender_name else ""
        later = f", and SIGKILL {time.monotonic() - sigterm.at:.0f} s later" if killed else ""
        return f"SIGTERM{sender}{later}"

    def _with_sigcont(self, sigterm: Received) -> bool:
        sigconts = [got for got in self.received if got.number == signal.SIGCONT]
        return any(abs(sigcont.at - sigterm.at) <= TOGETHER_SECONDS for sigcont in sigconts)


def _at_time_limit(environment: Mapping[str, str], now: float) -> bool:
    end = environment.get("SLURM_JOB_END_TIME", "")
    return end.isdecimal() and now >= int(end) - LIMIT_SECONDS


def _name_of(process: int) -> str:
    """Returns the program of a process; '' if it is gone, like `kill`."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip() if process > 0 else ""
    except OSError:
        return ""
