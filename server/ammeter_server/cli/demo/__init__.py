"""Demonstrates the whole data path with a broken run: trainer, journal, shipper, collector, incident, page.

All files are in a temporary folder, and all processes end with the demo.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ammeter_server.cli.demo.processes import POLL_SECONDS, CannotShowError, free_port, get_json, started, tail, wait
from ammeter_server.cli.demo.progress import Show, escalation_line, open_show

TRAINER = Path("trainer/broken.py")
PLANTED = "nonfinite-gradient"
TRAINING = ("--tiny", "--precision", "fp16", "--steps", "120", "--fault", f"{PLANTED}@60", "--name", "demo")

START_TIMEOUT_SECONDS = 30.0
"""Maximum seconds for the collector's start, and for the arrival of the last record."""


def run(training: Sequence[str], once: bool) -> int:
    """Shows a run from its first step to its last.

    Args:
        training: A training command of the user; without it, a trainer with a planted fault.
        once: Ends after the run; otherwise the page stays up until Ctrl-C.

    Returns:
        0 if the planted fault was found, else 1. With a command of the user, its exit code.
    """
    command = list(training) or _planted()
    with tempfile.TemporaryDirectory(prefix="ammeter-demo-") as folder, _ended_by_signal(), open_show() as show:
        place = Place(Path(folder))
        with _collector(place):
            show.print_line(f"collector and page: {place.url}")
            verdicts_found, code = _watch(place, command, show)
            if training:
                result = code
            else:
                result = 0 if PLANTED in verdicts_found else 1
                show.print_line(_verdict(verdicts_found))
            if not once:
                show.print_line(f"the page stays available at {place.page}; Ctrl-C ends the demo")
                _until_interrupted()
    return result


@dataclass(frozen=True)
class Place:
    """Folder, port and run id of the demo."""

    folder: Path
    port: int = field(default_factory=free_port)
    run: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def page(self) -> str:
        return f"{self.url}/runs/{self.run}"

    @property
    def journals(self) -> Path:
        return self.folder / "runs"

    def environment(self) -> dict[str, str]:
        """The trainer's environment: the demo's collector and folder, without AMMETER_ settings of the machine."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
        return inherited | {
            "AMMETER_URL": self.url,
            "AMMETER_DIR": str(self.journals),
            "AMMETER_RUN_ID": self.run,
        }


def _planted() -> list[str]:
    if not TRAINER.is_file():
        raise CannotShowError(
            f"there is no {TRAINER} in {Path.cwd()}; change to a checkout of Ammeter, or name a training command that "
            "calls ammeter.watch(): ammeter-server demo -- python train.py"
        )
    return [sys.executable, str(TRAINER), *TRAINING]


def _watch(place: Place, command: Sequence[str], show: Show) -> tuple[set[str], int]:
    """Trains, and shows the run as the collector reports it.

    Returns:
        The verdicts found, and the exit code of the command.
    """
    show.print_line(f"training: {' '.join(command)}")
    shown: dict[str, str] = {}
    with started(command, place.folder / "training.log", place.environment(), place.journals) as trainer:
        while trainer.poll() is None:
            _show_news(place, show, shown)
            time.sleep(POLL_SECONDS)
        wait(lambda: _show_news(place, show, shown), START_TIMEOUT_SECONDS if place.journals.is_dir() else 0.0)
    log = tail(place.folder / "training.log")
    if trainer.returncode:
        show.print_line(f"the training command ended with exit code {trainer.returncode}:\n{log}")
    elif get_json(f"{place.url}/api/v1/runs/{place.run}") is None:
        show.print_line(
            "the collector received nothing from the run; check that the command calls "
            f"ammeter.watch(model, optimizer, scaler). Its output:\n{log}"
        )
    return {incident.split(".")[-2] for incident in shown}, trainer.returncode


def _show_news(place: Place, show: Show, shown: dict[str, str]) -> bool:
    """Shows new progress and incidents. Returns whether the run has ended at the collector."""
    description = get_json(f"{place.url}/api/v1/runs/{place.run}")
    if description is None:
        return False
    show.progress(description)
    for incident in reversed((get_json(f"{place.url}/api/v1/runs/{place.run}/incidents") or {"items": []})["items"]):
        before = shown.get(incident["id"])
        shown[incident["id"]] = incident["severity"]
        if before is None:
            show.incident(incident, place.page)
        elif before != incident["severity"]:
            show.print_line(escalation_line(incident, before))
    return bool(description["state"] != "running")


def _verdict(verdicts_found: set[str]) -> str:
    if PLANTED in verdicts_found:
        return f"the planted fault was found: {PLANTED}"
    return f"the planted fault {PLANTED} was not found; found: {', '.join(sorted(verdicts_found)) or 'nothing'}"


@contextmanager
def _collector(place: Place) -> Iterator[None]:
    """Runs a collector of the demo's own; enters the block when it is ready."""
    serve = [sys.executable, "-m", "ammeter_server", "serve", "--port", str(place.port)]
    serve += ["--database-url", f"sqlite:///{place.folder / 'collector.db'}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_SERVER_")}
    log = place.folder / "collector.log"
    with started(serve, log, environment) as collector:
        ready = wait(
            lambda: collector.poll() is not None or get_json(f"{place.url}/readyz") is not None, START_TIMEOUT_SECONDS
        )
        if not ready or collector.poll() is not None:
            raise CannotShowError(f"the collector did not start:\n{tail(log)}")
        yield


def _until_interrupted() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C, so that the demo cleans up."""

    def end(_: int, __: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
