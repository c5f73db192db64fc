"""Runs the whole stack without containers: docker-compose.yml with local programs.

Commands and configuration files are the same, with loopback addresses and paths in one folder. PostgreSQL is used if it
is installed, else SQLite. Ctrl-C ends everything. usage: make stack, make stack ARGS=--demo
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ammeter_server.cli.demo import PLANTED, TRAINING
from ammeter_server.cli.demo.processes import CannotShowError, started, tail
from deploy import compose, processes
from deploy.compose import ROOT, Service
from deploy.database import start_database
from deploy.fault_views import fault_views, wait_for_views
from deploy.place import Place, lay_ports
from deploy.processes import TERMINATION_SIGNALS, MissingError, Process, StackError

TERMINAL_SERVICE = "pages"
"""The service whose output goes to the terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the stack until it is stopped.

    Returns 0, or 1 if a part failed or the demo's fault was not visible.
    """
    arguments = _parser().parse_args(argv)
    try:
        with ExitStack() as cleanup:
            cleanup.enter_context(_ended_by_signal())
            folder = arguments.folder or cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ammeter-stack-"))
            return _run(Path(folder).absolute(), arguments, cleanup)
    except (StackError, CannotShowError, compose.UnsetError) as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130 if arguments.once else 0


def _run(folder: Path, arguments: argparse.Namespace, cleanup: ExitStack) -> int:
    begun = time.monotonic()
    place = prepare(folder, dict(arguments.port or ()))
    running = list(start_services(place, cleanup))
    print_lines(f"the stack is up after {time.monotonic() - begun:.0f} s:", *_addresses(place), "")
    seen = _demonstrate(place, running) if arguments.demo else True
    if arguments.once:
        return 0 if seen else 1
    print_lines(f"logs and data are in {folder}; Ctrl-C stops the stack")
    while True:
        _check(running)
        time.sleep(0.5)


def prepare(folder: Path, ports: Mapping[str, int]) -> Place:
    """Prepares the folder with its secrets and the services that can run on this machine."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    secrets = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(folder / "env"), str(folder / "secrets")]
    subprocess.run(secrets, check=True, stdout=subprocess.DEVNULL)
    lines = (folder / "env").read_text().splitlines()
    services = compose.services(dict(line.split("=", 1) for line in lines))
    missing = frozenset(service.name for service in services if not _can_run(service))
    return Place(folder, {service.name: service for service in services}, lay_ports(services, ports), missing)


def _can_run(service: Service) -> bool:
    """Whether the service's program is installed; prints a message if not."""
    if not service.words:
        print_lines(f"{service.name}: omitted; only its image contains the command")
        return False
    try:
        processes.program(Path(service.words[0]).name)
    except MissingError as error:
        instead = "; SQLite is used instead" if service.name == "database" else "; omitted"
        print_lines(f"{service.name}: {error}{instead}")
        return False
    return True


def start_services(place: Place, cleanup: ExitStack) -> Iterator[Process]:
    """Starts every service after its dependencies, and waits until it is healthy.

    `cleanup` ends the started processes.
    """
    for service in place.services.values():
        if service.name in place.missing:
            continue
        place.lay_out(service)
        with processes.signals_blocked():
            process = _start(place, service)
            cleanup.callback(process.stop)
        if service.ends:
            processes.run_to_its_end(process)
            continue
        processes.wait_until_healthy(place, process)
        yield process


def _start(place: Place, service: Service) -> Process:
    if service.name == "database":
        return start_database(place, service)
    command = processes.words(place, service)
    if "database" in place.missing and command[1:3] == ["-m", "ammeter_server"]:
        command += ["--database-url", f"sqlite:///{place.folder / 'collector.db'}"]
    return processes.start(place, service, command, to_terminal=service.name == TERMINAL_SERVICE)


def _addresses(place: Place) -> Iterator[str]:
    token = place.folder / "secrets" / "token"
    notes = {
        "collector": ("the page", f"sign in with: cat {token}"),
        "prometheus": ("Prometheus", "metrics of runs and of the fleet"),
        "alertmanager": ("Alertmanager", "notifications and silences"),
        "pages": ("receiver", "prints the pages in this terminal"),
    }
    for name, (title, note) in notes.items():
        if name not in place.missing:
            yield f"  {title:<13} http://{place.address(name):<16} {note}"


def _demonstrate(place: Place, running: list[Process]) -> bool:
    """Trains with a fault and prints where it is visible. Returns whether it appeared everywhere."""
    run, token = str(uuid.uuid4()), (place.folder / "secrets" / "token").read_text()
    command = [sys.executable, str(ROOT / "trainer" / "broken.py"), *TRAINING]
    print_lines(f"training with a fault: python trainer/broken.py {' '.join(TRAINING)}")
    journals, log = place.folder / "journals", place.folder / "training.log"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AMMETER_")}
    own = {"AMMETER_URL": f"http://{place.address('collector')}", "AMMETER_TOKEN": token}
    own |= {"AMMETER_DIR": str(journals), "AMMETER_RUN_ID": run}
    with started(command, log, inherited | own, journals) as training:
        while training.poll() is None:
            _check(running)
            time.sleep(0.1)
    if training.returncode:
        print_lines(f"the training ended with exit code {training.returncode}:\n{tail(log)}")
        return False
    views = fault_views(place, token, run, PLANTED)
    print_lines("", f"waiting until the fault {PLANTED} is visible (Prometheus scrapes every 15 s):")
    seen = 0
    for view in wait_for_views(views, lambda: _check(running)):
        print_lines(f"  {'visible ' + view.where:<24} {view.link}")
        seen += 1
    if seen < len(views):
        print_lines(f"  not visible in {len(views) - seen} of {len(views)} places")
    print_lines("")
    return seen == len(views)


def _check(running: list[Process]) -> None:
    for process in running:
        ended = process.ended()
        if ended:
            raise StackError(ended)


def print_lines(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stack", description="The stack of docker-compose.yml, without containers.")
    parser.add_argument(
        "--demo", action="store_true", help="train with a fault, and print the places where it is visible"
    )
    parser.add_argument("--once", action="store_true", help="end then: 0 if it was visible everywhere, else 1")
    parser.add_argument(
        "--folder", metavar="DIR", help="folder of data, logs and secrets, which stays (a temporary folder)"
    )
    parser.add_argument(
        "--port",
        action="append",
        type=_port,
        metavar="SERVICE=PORT",
        help="collector=8480; can be repeated (free ports)",
    )
    return parser


def _port(text: str) -> tuple[str, int]:
    name, _, port = text.partition("=")
    if not name or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not SERVICE=PORT, such as collector=8480")
    return name, int(port)


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Treats every termination signal like Ctrl-C, so that nothing is left behind.

    Only the first signal counts; later ones do not interrupt the cleanup.
    """

    def end(_: int, __: FrameType | None) -> Any:
        for number in TERMINATION_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in TERMINATION_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
