"""The trainings in examples/kubernetes are valid, one run each, without a secret, and known to the network policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ammeter.environment.settings import settings
from ammeter.launcher.run_identity import determine_run
from deploy.compose import ROOT
from tests.deploy.manifests import named, wrong

EXAMPLES = ROOT / "examples" / "kubernetes"
THINGS = [
    (path.stem, thing) for path in sorted(EXAMPLES.glob("*.yaml")) for thing in yaml.safe_load_all(path.read_text())
]
UID = "5f3a1c7e-6f0e-4f39-9d7e-2f6f0a4b1c55"


def templates(inside: Any) -> list[dict[str, Any]]:
    """The pod templates in a manifest."""
    if isinstance(inside, list):
        return [found for part in inside for found in templates(part)]
    if not isinstance(inside, dict):
        return []
    if "containers" in inside.get("spec", {}):
        return [inside]
    return [found for part in inside.values() for found in templates(part)]


PODS = [(name, template) for name, thing in THINGS for template in templates(thing)]


def container(template: dict[str, Any]) -> dict[str, Any]:
    (only,) = template["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def test_there_is_a_training_for_each_way_to_run_one() -> None:
    assert {"Job", "JobSet", "PyTorchJob"} <= {thing["kind"] for _, thing in THINGS}
    assert ["job", "jobset", "pytorchjob", "pytorchjob"] == [name for name, _ in PODS]


@pytest.mark.parametrize("thing", [thing for _, thing in THINGS], ids=named)
def test_everything_is_what_its_schema_wants(thing: dict[str, Any]) -> None:
    assert [] == wrong(thing)


@pytest.mark.parametrize("thing", [thing for _, thing in THINGS], ids=named)
def test_the_schemas_refuse_a_word_that_they_do_not_know(thing: dict[str, Any]) -> None:
    assert [] != wrong({**thing, "spec": {**thing["spec"], "unheardOf": {"a": 1}}})
    for template in templates(thing):
        template["spec"]["unheardOf"] = 1
        assert [] != wrong(thing)
        del template["spec"]["unheardOf"]


@pytest.mark.parametrize(("name", "template"), PODS)
def test_all_pods_of_a_training_are_one_run_however_often_they_start(name: str, template: dict[str, Any]) -> None:
    environment = {variable["name"]: variable for variable in container(template)["env"]}
    label = environment["AMMETER_RUN_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert {
        "job": "metadata.labels['batch.kubernetes.io/controller-uid']",
        "jobset": "metadata.labels['jobset.sigs.k8s.io/jobset-uid']",
        "pytorchjob": "metadata.labels['training.kubeflow.org/job-name']",
    }[name] == label
    for given in (UID, "training-2026-11-26"):
        pods = [{"AMMETER_RUN_ID": given, "RANK": rank, "HOSTNAME": f"pod-{rank}"} for rank in "01"]
        first, second = (determine_run(pod, container(template)["command"][4:])[0] for pod in pods)
        assert first == second
        assert (first == UID) == (given == UID)


@pytest.mark.parametrize(("name", "template"), PODS)
def test_the_token_is_a_file_of_a_secret_and_in_no_manifest(
    name: str, template: dict[str, Any], tmp_path: Path
) -> None:
    environment = {variable["name"]: variable.get("value") for variable in container(template)["env"]}
    assert "AMMETER_TOKEN" not in environment
    (mount,) = (mount for mount in container(template)["volumeMounts"] if mount["name"] == "token")
    (volume,) = (volume for volume in template["spec"]["volumes"] if volume["name"] == "token")
    assert f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}" == environment["AMMETER_TOKEN_FILE"]
    assert "Secret" not in {thing["kind"] for _, thing in THINGS}
    (tmp_path / "token").write_text("t" * 32)
    variables = {key: found for key, found in environment.items() if found} | {
        "AMMETER_TOKEN_FILE": f"{tmp_path}/token"
    }
    assert "t" * 32 == settings(environment=variables).token


@pytest.mark.parametrize(("name", "template"), PODS)
def test_workers_have_shared_memory_and_the_journal_a_folder_in_a_volume(name: str, template: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container(template)["volumeMounts"]}
    assert "Memory" == mounts["/dev/shm"]["emptyDir"]["medium"]
    (folder,) = (item["value"] for item in container(template)["env"] if item["name"] == "AMMETER_DIR")
    assert str(Path(folder).parent) in mounts  # not the volume itself, to which its group may write


@pytest.mark.parametrize(("name", "template"), PODS)
def test_a_training_is_not_root_and_has_no_token_of_the_cluster(name: str, template: dict[str, Any]) -> None:
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    assert not template["spec"]["automountServiceAccountToken"]
    assert {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}} == (
        container(template)["securityContext"]
    )


def test_ranks_meet_at_a_name_that_the_pods_have() -> None:
    by_name = {named(thing): thing for _, thing in THINGS}
    job, jobset = by_name["Job training"], by_name["JobSet training"]
    (service,) = (thing for _, thing in THINGS if thing["kind"] == "Service")
    pod = job["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert ("None", pod["spec"]["subdomain"]) == (service["spec"]["clusterIP"], service["metadata"]["name"])
    assert f"--master-addr={job['metadata']['name']}-0.{pod['spec']['subdomain']}" in container(pod)["command"]
    (nodes,) = jobset["spec"]["replicatedJobs"]
    address = f"{jobset['metadata']['name']}-{nodes['name']}-0-0.{jobset['spec']['network']['subdomain']}"
    assert f"--master-addr={address}" in container(nodes["template"]["spec"]["template"])["command"]
    for spec in (job["spec"], nodes["template"]["spec"]):
        assert f"--nnodes={spec['completions']}" in container(spec["template"])["command"]


def test_the_network_policy_covers_the_collector_and_lets_the_trainings_in() -> None:
    (policy,) = (thing["spec"] for _, thing in THINGS if thing["kind"] == "NetworkPolicy")
    base = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "collector.yaml").read_text()))
    collector = base[0]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= collector["metadata"]["labels"].items()
    (rule,) = policy["ingress"]
    ports = {port["name"] for port in collector["spec"]["containers"][0]["ports"]}
    assert {port["port"] for port in rule["ports"]} <= ports
    senders = rule["from"][0]["podSelector"]["matchLabels"]
    assert all(senders.items() <= template["metadata"]["labels"].items() for _, template in PODS)
