from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import compose, processes
from deploy.compose import ROOT, Service
from deploy.place import Place, lay_ports
from deploy.processes import MissingError, StackError
from tests.alerting import until

VARIABLES = {"AMMETER_DATABASE_PASSWORD": "d", "AMMETER_GRAFANA_PASSWORD": "g", "AMMETER_SECRETS": "./deploy/secrets"}
SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")

STARTS = """
import json, sys, time
from pathlib import Path
from deploy import compose, processes
from deploy.place import Place

folder, variables, command = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]
services = {each.name: each for each in compose.services(variables)}
place = Place(Path(folder), services, {})
print(processes.start(place, services["migrate"], command).popen.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    every = compose.services(VARIABLES)
    return Place(tmp_path, {service.name: service for service in every}, lay_ports(every, {}))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("name", ["prometheus", "alertmanager"])
def test_a_program_that_is_missing_is_named_with_its_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError, match=f"{name} is not installed; run: apt-get install {processes.PACKAGES[name]}"):
        processes.program(name)


def test_a_service_that_ends_by_itself_says_how_with_its_last_words(place: Place) -> None:
    migrate = place.services["migrate"]
    process = processes.start(place, migrate, [sys.executable, "-c", "import sys; sys.exit('no room left')"])
    with pytest.raises(StackError, match=r"migrate ended with exit code 1:\nno room left"):
        processes.run_to_its_end(process)


def test_one_that_does_not_listen_to_being_asked_is_ended_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_SECONDS", 0.2)
    deaf: Service = replace(place.services["migrate"], stop_signal="SIGTERM")
    words = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    process = processes.start(place, deaf, [sys.executable, "-c", words])
    until(lambda: (place.folder / "migrate.log").read_text(), "it is deaf")
    process.stop()
    assert -signal.SIGKILL == process.popen.returncode


def test_no_service_outlives_the_one_that_started_it_even_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STARTS, str(tmp_path), json.dumps(VARIABLES), *SLEEPS]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as stack:
        assert stack.stdout is not None
        service = int(stack.stdout.readline())
        assert alive(service)
        os.kill(stack.pid, signal.SIGKILL)
    until(lambda: not alive(service), "the service has ended too")
