"""Runs the services as local processes that end with their parent, however it ends."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammeter_server.cli.demo.processes import tail
from deploy.compose import Service
from deploy.place import Place

HEALTH_TIMEOUT_SECONDS = 60.0
"""Maximum number of seconds until a service is healthy."""

STOP_TIMEOUT_SECONDS = 10.0
"""Maximum number of seconds for a service to end after its stop signal."""

PACKAGES = {
    "prometheus": "prometheus",
    "alertmanager": "prometheus-alertmanager",
    "postgres": "postgresql",
    "pg_isready": "postgresql",
}
"""The Debian package that contains the program."""

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Blocks termination signals, because an unrecorded process would be left behind."""
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)


class StackError(Exception):
    """Raised with the reason why a part cannot run."""


class MissingError(StackError):
    """Raised for a program that is not installed."""


@dataclass
class Process:
    """A running service."""

    service: Service
    popen: subprocess.Popen[bytes]
    log: Path | None

    def ended(self) -> str | None:
        """Returns an error text if the process has ended by itself, else None."""
        if self.popen.poll() is None:
            return None
        log_tail = f":\n{tail(self.log)}" if self.log else ""
        return f"{self.service.name} ended with exit code {self.popen.returncode}{log_tail}"

    def stop(self) -> None:
        """Stops it like its image, then kills it after STOP_TIMEOUT_SECONDS."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.Signals[self.service.stop_signal])
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_TIMEOUT_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def program(name: str) -> list[str]:
    """Returns the command of a program. Raises MissingError, which names its package."""
    if name == "ammeter-server":
        return [sys.executable, "-m", "ammeter_server"]
    if name == "python":
        return [sys.executable]
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = shutil.which(name) or shutil.which(f"prometheus-{name}") or (str(packaged[-1]) if packaged else None)
    if path is None:
        raise MissingError(f"{name} is not installed; run: apt-get install {PACKAGES.get(name, name)}")
    return [path]


def words(place: Place, service: Service) -> list[str]:
    """Returns the service's command line on this machine."""
    name, *arguments = service.words
    return [*program(Path(name).name), *(place.localized(service, word) for word in arguments)]


def start(
    place: Place, service: Service, command: Sequence[str], to_terminal: bool = False, **user_options: Any
) -> Process:
    """Starts a service in its own session.

    to_terminal: print its output on the terminal, not to a log.
    """
    log = None if to_terminal else place.folder / f"{service.name}.log"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AMMETER_", "PG"))}
    environment = inherited | place.environment(service)
    out = log.open("ab") if log else None
    sign = signal.Signals[service.stop_signal]

    def die_with_parent() -> None:
        _libc.prctl(DIE_WITH_PARENT, sign)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)

    try:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # safe: this process has one thread
            **user_options,
        )
    finally:
        if out:
            out.close()
    return Process(service, popen, log)


def wait_until_healthy(place: Place, process: Process) -> None:
    """Waits until the health check of the compose file succeeds.

    Raises StackError if the process ends, or is not healthy in time.
    """
    deadline = time.monotonic() + HEALTH_TIMEOUT_SECONDS
    while not _healthy(place, process.service):
        ended = process.ended()
        if ended:
            raise StackError(ended)
        if time.monotonic() > deadline:
            raise StackError(
                f"{process.service.name} is not healthy after {HEALTH_TIMEOUT_SECONDS:.0f} s; see {process.log}"
            )
        time.sleep(0.1)


def _healthy(place: Place, service: Service) -> bool:
    """Runs the health check.

    HTTP checks are done here, because machines may lack the image's wget.
    """
    from deploy.fault_views import answers

    check = [place.localized(service, word) for word in service.health]
    address = re.search(r"http://[^\s'\"]+", " ".join(check))
    if address:
        return answers(address[0])
    command = [*program(check[0]), *check[1:]]
    return not subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30).returncode


def run_to_its_end(process: Process) -> None:
    """Waits for a process to complete. Raises StackError if it fails."""
    code = process.popen.wait()
    if code:
        raise StackError(process.ended() or process.service.name)
