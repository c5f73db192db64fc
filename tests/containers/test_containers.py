"""docker-compose.yml, run from the file itself with real containers, and the images that it builds."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter_server.cli.demo import PLANTED, TRAINING
from deploy import compose
from deploy.compose import ROOT
from tests.alerting import until
from tests.containers.engine import WITHOUT_STAND_IN, Engine, Stack, build_images, clean_up, engine

PORTS = ("AMMETER_PORT", "AMMETER_PROMETHEUS_PORT", "AMMETER_ALERTMANAGER_PORT", "AMMETER_GRAFANA_PORT")
FILLED = {"AMMETER_DATABASE_PASSWORD": "d", "AMMETER_GRAFANA_PASSWORD": "g", "AMMETER_SECRETS": "./deploy/secrets"}
RUNNING = [service.name for service in compose.services(FILLED) if not service.ends and service.name != "grafana"]


@pytest.fixture(scope="session")
def containers() -> Engine:
    found = engine()
    clean_up(found)
    build_images(found)
    return found


@pytest.fixture(scope="session")
def stack(containers: Engine) -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="ammeter-test-compose-") as folder:
        Path(folder).chmod(0o711)  # users of containers read the token below it
        stack = Stack(containers, Path(folder), dict(zip(PORTS, free_ports(len(PORTS)), strict=True)))
        try:
            stack.up()
            yield stack
        finally:
            stack.down()


@pytest.fixture(scope="session")
def broken_run(stack: Stack) -> str:
    """Id of a run, trained on this machine, that breaks and sends what it records to the collector's published port."""
    run = str(uuid.uuid4())
    train({"AMMETER_URL": stack.address("AMMETER_PORT"), "AMMETER_TOKEN": stack.token, "AMMETER_RUN_ID": run},
          stack.folder / "journals", TRAINING)  # fmt: skip
    return run


def train(settings: dict[str, str], journals: Path, arguments: tuple[str, ...]) -> None:
    journals.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, str(ROOT / "trainer" / "broken.py"), *arguments]
    environment = os.environ | settings | {"AMMETER_DIR": str(journals)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def get(url: str, token: str = "") -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_only_what_has_no_stand_in_is_left_out(stack: Stack) -> None:
    assert {"grafana": WITHOUT_STAND_IN["grafana/grafana"]} == stack.left_out
    assert {*RUNNING, "migrate"} == set(stack.services)


@pytest.mark.parametrize("service", RUNNING)
class TestEveryService:
    def test_is_healthy_by_the_check_that_the_file_gives_it(self, stack: Stack, service: str) -> None:
        command = list(stack.services[service].health)
        assert command == stack.engine.inspect(stack.container(service))["Config"]["Healthcheck"]["Test"][1:]
        assert stack.is_healthy(service), stack.logs(service)

    def test_has_no_capability_no_way_to_get_one_and_no_root(self, stack: Stack, service: str) -> None:
        process = stack.engine.inspect(stack.container(service))["State"]["Pid"]
        status = dict(re.findall(r"^(\w+):\s+(.*)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE))
        assert {"0" * 16} == {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
        assert "1" == status["NoNewPrivs"]
        assert "0" not in status["Uid"].split()

    def test_cannot_write_beside_its_volumes(self, stack: Stack, service: str) -> None:
        tried = stack.engine.run(
            stack.engine.podman, "exec", stack.container(service), "sh", "-c", "echo x > /written", check=False
        )
        assert tried.returncode
        assert "Read-only file system" in tried.stderr

    def test_listens_for_this_machine_alone(self, stack: Stack, service: str) -> None:
        published = stack.engine.inspect(stack.container(service))["NetworkSettings"]["Ports"] or {}
        assert {"127.0.0.1"} >= {host["HostIp"] for hosts in published.values() for host in hosts or ()}

    def test_has_no_secret_in_its_command(self, stack: Stack, service: str) -> None:
        assert stack.token not in json.dumps(stack.engine.inspect(stack.container(service)))


def test_the_collector_asks_for_the_token_and_takes_it(stack: Stack) -> None:
    address = stack.address("AMMETER_PORT") + "/api/v1/runs"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        get(address)
    assert [] == [incident for incident in get(address, stack.token)["items"] if not incident["id"]]


def test_a_run_that_breaks_is_a_page_at_the_receiver(stack: Stack, broken_run: str) -> None:
    found = get(f"{stack.address('AMMETER_PORT')}/api/v1/runs/{broken_run}/incidents", stack.token)
    assert [PLANTED] == [incident["verdict"] for incident in found["items"]]
    page = "PAGE firing: AmmeterNonfiniteGradient in project reference"
    until(lambda: page in stack.logs("pages"), "the receiver prints it", 60, explain=lambda: stack.logs("pages"))


def test_prometheus_scrapes_the_collector_with_the_token_and_sees_the_incident(stack: Stack, broken_run: str) -> None:
    def query(text: str) -> list[Any]:
        url = f"{stack.address('AMMETER_PROMETHEUS_PORT')}/api/v1/query?query={urllib.parse.quote(text)}"
        result: list[Any] = get(url)["data"]["result"]
        return result

    up = {"ammeter": "1", "ammeter-collector": "1"}
    until(lambda: up == {series["metric"]["job"]: series["value"][1] for series in query("up")}, "both jobs are up", 60)
    until(lambda: bool(query(f'ammeter_incident_active{{run="{broken_run}"}}')), "the incident is a series", 60)


def test_the_database_keeps_what_it_has_when_containers_are_replaced(stack: Stack, broken_run: str) -> None:
    stack.compose("stop", "collector", "database")
    for service in ("collector", "database"):
        stack.engine.run(stack.engine.podman, "rm", stack.container(service))
    for service in ("database", "collector"):
        stack.compose("up", "--detach", "--no-build", "--no-deps", service)
        stack.wait_until_healthy(service)
    assert broken_run == get(f"{stack.address('AMMETER_PORT')}/api/v1/runs/{broken_run}", stack.token)["id"]


def test_the_image_of_the_shipper_delivers_a_journal_without_root_and_capabilities(stack: Stack) -> None:
    run, journals = str(uuid.uuid4()), stack.folder / "left-behind"
    train({"AMMETER_RUN_ID": run}, journals, ("--steps", "12"))
    subprocess.run(["chown", "-R", "10001:10001", str(journals)], check=True)
    words = ["run", "--rm", "--network", stack.network, "--read-only", "--cap-drop", "ALL", "--tmpfs", "/tmp"]
    words += ["--security-opt", "no-new-privileges", "--volume", f"{journals}:/journals"]
    words += ["--env", "AMMETER_URL=http://collector:8480", "--env", f"AMMETER_TOKEN={stack.token}"]
    done = stack.engine.run(
        stack.engine.podman, *words, "ammeter-shipper:test", "ammeter", "ship", "/journals", "--once"
    )
    found = get(f"{stack.address('AMMETER_PORT')}/api/v1/runs/{run}", stack.token)
    assert run == found["id"], done.stdout + done.stderr


@pytest.mark.parametrize("image", ["ammeter-collector:0.2.0", "ammeter-shipper:test"])
def test_an_image_holds_what_its_lock_file_says_and_nothing_else(containers: Engine, image: str) -> None:
    lock = "collector" if "collector" in image else "shipper"
    text = (ROOT / "deploy" / "locks" / f"{lock}.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9_.-]+)==([^\s;]+)(?! ; sys_platform == 'win32')", text, re.MULTILINE))
    listing = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}))"
    )
    installed = json.loads(
        containers.run(containers.podman, "run", "--rm", "--network", "none", image, "python", "-c", listing).stdout
    )
    ours = {name for name in installed if name.startswith("ammeter")}
    assert {"ammeter", "ammeter-server"} >= ours
    foreign = {name: version for name, version in installed.items() if name not in ours}
    assert foreign == {name: version for name, version in locked.items() if name in foreign}
    assert {"tzdata"} >= set(locked) - set(foreign)
