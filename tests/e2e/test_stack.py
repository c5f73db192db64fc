"""`make stack`, the services of docker-compose.yml on this machine, with a training that breaks."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy import compose
from deploy.compose import ROOT
from tests.alerting import until
from tests.parts import need

pytestmark = pytest.mark.long

ADDRESS = re.compile(r"^  (the page|Prometheus|Alertmanager|receiver) +(http://127\.0\.0\.1:\d+)", re.MULTILINE)
RUN = re.compile(r"/runs/([0-9a-f-]{36})$", re.MULTILINE)
VARIABLES = {"AMMETER_DATABASE_PASSWORD": "d", "AMMETER_GRAFANA_PASSWORD": "g", "AMMETER_SECRETS": "secrets"}


class Stack:
    """Running in a folder. printed: what a person has seen of it."""

    def __init__(self, folder: Path) -> None:
        need("prometheus")
        need("prometheus-alertmanager", "alertmanager")
        self.folder = folder
        self._out = folder.parent / "printed"
        command = [sys.executable, "-m", "deploy.stack", "--demo", "--folder", str(folder)]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    @property
    def printed(self) -> str:
        return self._out.read_text()

    def says(self, text: str) -> bool:
        assert self.process.poll() is None, self.printed
        return text in self.printed

    def addresses(self) -> dict[str, str]:
        return dict(ADDRESS.findall(self.printed))

    def get(self, title: str, path: str) -> Any:
        token = (self.folder / "secrets" / "token").read_text()
        asked = urllib.request.Request(self.addresses()[title] + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer) if "json" in answer.headers["Content-Type"] else answer.read().decode()

    def left(self) -> dict[int, list[str]]:
        """Processes that have to do with the folder, and their command lines."""
        found = {}
        for command_line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = command_line.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if int(command_line.parent.name) != self.process.pid and any(str(self.folder) in word for word in words):
                found[int(command_line.parent.name)] = words
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="ammeter-test-stack-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL's own user enters it
        stack = Stack(Path(folder) / "stack")
        try:
            until(lambda: stack.says("Ctrl-C stops the stack"), "the demo is over", 240)
            yield stack
        finally:
            stack.stop()


def test_a_fault_in_training_is_seen_in_prometheus_in_alertmanager_on_the_page_and_by_the_receiver(
    stack: Stack,
) -> None:
    (run,) = {*RUN.findall(stack.printed)}
    query = urllib.parse.quote(f'ammeter_incident_active{{run="{run}",verdict="nonfinite-gradient"}}')
    (found,) = stack.get("Prometheus", f"/api/v1/query?query={query}")["data"]["result"]
    assert "1" == found["value"][1]
    alert_labels = [alert["labels"] for alert in stack.get("Alertmanager", "/api/v2/alerts")]
    assert ("AmmeterNonfiniteGradient", run) in {(labels["alertname"], labels.get("run")) for labels in alert_labels}
    assert "<html" in stack.get("the page", f"/runs/{run}")
    items = stack.get("the page", f"/api/v1/runs/{run}/incidents")["items"]
    assert ["nonfinite-gradient"] == [incident["verdict"] for incident in items]
    page = "PAGE firing: AmmeterNonfiniteGradient in project reference"
    until(lambda: stack.says(page), "the receiver prints it", explain=lambda: stack.printed)
    assert {"the page", "Alertmanager", "Prometheus"} == {
        where.removeprefix("in ").removeprefix("on ")
        for where in re.findall(r"^  visible (.+?) +http", stack.printed, re.M)
    }


def test_prometheus_scrapes_both_jobs_and_has_the_rules_that_are_its_own(stack: Stack) -> None:
    def up() -> dict[str, str]:
        result = stack.get("Prometheus", f"/api/v1/query?query={urllib.parse.quote('up')}")["data"]["result"]
        return {series["metric"]["job"]: series["value"][1] for series in result}

    # A job's first scrape is due anywhere within its interval of 15 s.
    until(lambda: up() == {"ammeter": "1", "ammeter-collector": "1"}, "both jobs are up", explain=lambda: str(up()))
    groups = stack.get("Prometheus", "/api/v1/rules")["data"]["groups"]
    rules = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert "AmmeterCollectorDown" in rules
    assert "AmmeterNonfiniteGradient" not in rules
    assert "err" not in rules.values()
    (alertmanager,) = stack.get("Prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert alertmanager["url"].startswith(stack.addresses()["Alertmanager"])


def test_what_runs_is_what_the_compose_file_says(stack: Stack) -> None:
    """But for the program's place, the addresses, and the folder in front of each path."""
    running = stack.left().values()
    for service in compose.services(VARIABLES):
        if service.name in ("grafana", "database", "migrate", "collector"):
            continue
        (command,) = [words for words in running if f"{stack.folder}/{service.name}/" in " ".join(words)]
        plain = [re.sub(r"127\.0\.0\.1:\d+", "0.0.0.0:PORT", word) for word in command]
        plain = [word.replace(f"{stack.folder}/{service.name}/", "/") for word in plain if word]
        words = [re.sub(r"0\.0\.0\.0:\d+", "0.0.0.0:PORT", word) for word in service.words[1:]]
        assert words == plain[1:]


def test_it_ends_when_it_is_asked_to_and_nothing_is_left(stack: Stack) -> None:
    assert stack.left()
    stack.process.send_signal(signal.SIGINT)
    assert 0 == stack.process.wait(60), stack.printed
    until(lambda: not stack.left(), f"nothing is left of {stack.left()}")
