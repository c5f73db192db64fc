from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ammeter import journal
from ammeter.shipper.process import main as ship
from ammeter_server.__main__ import main as server
from ammeter_server.config.settings import from_environment
from deploy.compose import ROOT
from tests.deploy.manifests import BASE, VERSION, named, things, wrong
from tests.parts import need

THINGS = [*things(), *yaml.safe_load_all((BASE / "training.yaml").read_text())]
PODS = [thing["spec"]["template"]["spec"] for thing in THINGS if thing["kind"] in ("Deployment", "Job")]
OURS = [
    container
    for pod in PODS
    for container in (*pod["initContainers"], *pod["containers"])
    if "ammeter-" in container["image"]
]


@pytest.mark.parametrize("thing", THINGS, ids=named)
def test_everything_is_what_its_schema_wants(thing: dict[str, Any]) -> None:
    assert [] == wrong(thing)


@pytest.mark.parametrize("thing", THINGS, ids=named)
def test_the_schemas_refuse_a_word_that_they_do_not_know(thing: dict[str, Any]) -> None:
    inside = "data" if thing["kind"] == "ConfigMap" else "spec"
    assert [] != wrong({**thing, inside: {**thing[inside], "unheardOf": {"a": 1}}})


def test_the_base_has_the_collector_what_watches_it_and_every_board() -> None:
    assert {
        *("Deployment ammeter", "Service ammeter", "PodDisruptionBudget ammeter", "ServiceMonitor ammeter"),
        *("ServiceMonitor ammeter-collector", "PrometheusRule ammeter", "ConfigMap ammeter-boards"),
    } == {named(thing) for thing in things()}
    (boards,) = (thing for thing in things() if thing["kind"] == "ConfigMap")
    assert {path.name for path in (ROOT / "dashboards" / "boards").glob("*.json")} == set(boards["data"])


@pytest.mark.parametrize("pod", PODS, ids=["collector", "training"])
def test_no_pod_runs_as_root_or_has_a_token_of_the_cluster(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]


@pytest.mark.parametrize("container", OURS, ids=lambda container: container["name"])
def test_what_is_ours_has_a_version_limits_and_may_do_nothing_more(container: dict[str, Any]) -> None:
    assert container["image"].endswith(f":{VERSION}")
    assert "memory" in container["resources"]["limits"]
    assert {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}} == (
        container["securityContext"]
    )


def test_every_command_is_one_that_the_programs_know(capsys: pytest.CaptureFixture[str]) -> None:
    programs = {"ammeter-server": server, "ammeter": lambda words: ship(words[1:])}
    for container in (candidate for candidate in OURS if candidate["command"][0] in programs):
        name, *words = container["command"]
        with pytest.raises(SystemExit) as ended:
            programs[name]([*words, "--help"])
        assert 0 == ended.value.code
    assert 3 == capsys.readouterr().out.count("usage: ")


def test_the_collector_takes_its_environment(tmp_path: Path) -> None:
    (container,) = (container for container in OURS if container["name"] == "collector")
    said = {variable["name"]: variable.get("value", "postgresql://ammeter@db/ammeter") for variable in container["env"]}
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "token")
    assert f"{mount['mountPath']}/token" == said["AMMETER_SERVER_TOKEN_FILE"]
    (tmp_path / "token").write_text("t" * 32)
    settings = from_environment(environment={**said, "AMMETER_SERVER_TOKEN_FILE": str(tmp_path / "token")})
    assert [container["ports"][0]["containerPort"]] == [settings.port]


def test_the_service_monitors_and_the_budget_find_the_collector() -> None:
    by_name = {named(thing): thing for thing in THINGS}
    labels = by_name["Deployment ammeter"]["spec"]["template"]["metadata"]["labels"]
    service = by_name["Service ammeter"]
    assert labels == service["spec"]["selector"]
    assert labels == by_name["PodDisruptionBudget ammeter"]["spec"]["selector"]["matchLabels"]
    for name in ("ammeter", "ammeter-collector"):
        monitor = by_name[f"ServiceMonitor {name}"]["spec"]
        assert service["metadata"]["labels"] == monitor["selector"]["matchLabels"]
        assert [service["spec"]["ports"][0]["name"]] == [endpoint["port"] for endpoint in monitor["endpoints"]]


@pytest.mark.parametrize(("name", "targets"), [("ammeter", 1), ("ammeter-collector", 2)])
def test_of_two_pods_prometheus_scrapes_runs_once_and_processes_each(tmp_path: Path, name: str, targets: int) -> None:
    (monitor,) = (thing for thing in THINGS if named(thing) == f"ServiceMonitor {name}")
    pods = [
        {
            "targets": [f"10.0.0.{pod}:8480"],
            "labels": {"namespace": "ml", "service": "ammeter", "pod": f"ammeter-{pod}"},
        }
        for pod in (1, 2)
    ]
    relabelings = [
        {in_snakes(key): relabeling[key] for key in relabeling}
        for relabeling in monitor["spec"]["endpoints"][0]["relabelings"]
    ]
    job = {"job_name": "monitored", "static_configs": pods, "relabel_configs": relabelings}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [job]}))
    command = [
        need("promtool"),
        "check",
        "service-discovery",
        "--timeout=1s",
        str(tmp_path / "prometheus.yaml"),
        "monitored",
    ]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {name} == {target["labels"]["job"] for target in found}
    assert targets == len({json.dumps(target["labels"], sort_keys=True) for target in found})


def in_snakes(word: str) -> str:
    return re.sub(r"[A-Z]", lambda sign: f"_{sign[0].lower()}", word)


def test_trainer_and_shipper_share_the_folder_and_the_user() -> None:
    pod = PODS[-1]
    (maker, shipper), (trainer,) = pod["initContainers"], pod["containers"]
    (folder,) = ({variable["name"]: variable["value"] for variable in trainer["env"]}["AMMETER_DIR"],)
    assert ["ammeter", "ship", folder] == shipper["command"]
    assert folder == maker["command"][-1]
    assert trainer["volumeMounts"] == shipper["volumeMounts"] == maker["volumeMounts"]
    assert [None, "Always"] == [maker.get("restartPolicy"), shipper["restartPolicy"]]
    assert {None} == {container.get("securityContext", {}).get("runAsUser") for container in (maker, shipper, trainer)}
    assert "AMMETER_URL" not in {variable["name"] for variable in trainer["env"]}


def test_journals_are_taken_in_the_folder_that_is_made_and_not_in_the_volume_itself(tmp_path: Path) -> None:
    maker = PODS[-1]["initContainers"][0]
    (mount,) = maker["volumeMounts"]
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2777)  # as the kubelet makes an emptyDir of a pod with an fsGroup
    with pytest.raises(PermissionError, match="can be written by others"):
        journal.private_folder(volume)
    command = [word.replace(mount["mountPath"], str(volume)) for word in maker["command"]]
    for _ in range(2):  # a pod's containers may be started again
        subprocess.run(command, check=True)
    folder = journal.private_folder(Path(command[-1]))
    assert 0o700 == folder.stat().st_mode & 0o777
