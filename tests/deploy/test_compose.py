from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from ammeter_server.config.settings import from_environment
from deploy import compose, generate
from deploy.compose import ROOT, Service, UnsetError
from deploy.place import Place, lay_ports
from tests.parts import need

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "compose.json").read_text())
SAID = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
NAMES = sorted(SAID["services"])
FILLED = {"AMMETER_DATABASE_PASSWORD": "d", "AMMETER_GRAFANA_PASSWORD": "g", "AMMETER_SECRETS": "./deploy/secrets"}


def secrets(folder: Path) -> dict[str, str]:
    """What make secrets writes, there."""
    command = ["sh", str(ROOT / "deploy" / "secrets.sh"), str(folder / "env"), str(folder / "secrets")]
    subprocess.run(command, check=True, capture_output=True)
    return dict(line.split("=", 1) for line in (folder / "env").read_text().splitlines())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    every = compose.services(secrets(tmp_path))
    return Place(tmp_path, {service.name: service for service in every}, lay_ports(every, {}))


def test_the_file_is_what_the_schema_of_compose_wants() -> None:
    assert [] == [error.message for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(SAID)]


def test_the_schema_refuses_a_word_that_it_does_not_know() -> None:
    misspelt = {**SAID, "services": {"collector": {"image": "x", "comand": ["serve"]}}}
    assert not jsonschema_rs.validator_for(SCHEMA).is_valid(misspelt)


@pytest.mark.parametrize("name", NAMES)
def test_every_image_has_a_version(name: str) -> None:
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.]+)*", SAID["services"][name]["image"])


@pytest.mark.parametrize("name", NAMES)
def test_every_service_says_when_it_is_healthy_and_comes_back_or_does_its_work_once(name: str) -> None:
    service = SAID["services"][name]
    assert ("unless-stopped" if "healthcheck" in service else "no") == service["restart"]


@pytest.mark.parametrize("name", NAMES)
def test_only_this_machine_reaches_a_published_port(name: str) -> None:
    assert [] == [port for port in SAID["services"][name].get("ports", ()) if not port.startswith("127.0.0.1:")]


@pytest.mark.parametrize("name", NAMES)
def test_every_service_runs_hardened(name: str) -> None:
    """No writable root file system, no capability, no way to new privileges."""
    service = SAID["services"][name]
    assert (True, ["ALL"], ["no-new-privileges:true"]) == (
        service["read_only"],
        service["cap_drop"],
        service["security_opt"],
    )
    assert "cap_add" not in service
    assert "privileged" not in service
    assert "build" in service or re.fullmatch(r"[1-9]\d*:\d+", service["user"])  # our images name their user themselves


@pytest.mark.parametrize("service", compose.services(FILLED), ids=lambda service: service.name)
def test_everything_that_is_mounted_is_there(service: Service) -> None:
    sources = [source for source in service.mounts.values() if source and source.name != "token"]
    assert [] == [source for source in sources if not source.exists()]


def test_every_volume_is_declared_and_used() -> None:
    mounted = [volume.split(":")[0] for service in SAID["services"].values() for volume in service.get("volumes", ())]
    assert sorted(SAID["volumes"]) == sorted(name for name in mounted if not name.startswith((".", "$")))


def test_our_image_has_the_version_of_the_distribution() -> None:
    version = tomllib.loads((ROOT / "server" / "pyproject.toml").read_text())["project"]["version"]
    assert {f"ammeter-collector:{version}"} == {
        service["image"] for service in SAID["services"].values() if "build" in service
    }


@pytest.mark.parametrize("missing", sorted(FILLED))
def test_nothing_starts_without_a_secret(missing: str) -> None:
    with pytest.raises(UnsetError, match=f"{missing} is not set: call make secrets first"):
        compose.services({name: value for name, value in FILLED.items() if name != missing})


def test_no_secret_stands_in_the_file() -> None:
    secret = re.compile(r"PASSWORD|TOKEN$|SECRET")
    said = [item for service in SAID["services"].values() for item in service.get("environment", {}).items()]
    kept = {name: value for name, value in said if secret.search(name)}
    assert {"PGPASSWORD", "POSTGRES_PASSWORD", "GF_SECURITY_ADMIN_PASSWORD"} == set(kept)
    assert [] == [name for name, value in kept.items() if not re.fullmatch(r"\$\{\w+:\?[^}]+\}", value)]


def test_secrets_are_random_and_stay_once_they_are_there(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, other, again = secrets(tmp_path / "a"), secrets(tmp_path / "b"), secrets(tmp_path / "a")
    assert first == again
    assert set() == {value for value in first.values() if value in other.values()}
    assert [64, 64] == [len(value) for name, value in sorted(first.items()) if name.endswith("PASSWORD")]
    tokens = [(tmp_path / name / "secrets" / "token").read_text() for name in ("a", "b")]
    assert 2 == len({*tokens})
    assert 0o700 == (tmp_path / "a" / "secrets").stat().st_mode & 0o777
    assert 0o600 == (tmp_path / "a" / "env").stat().st_mode & 0o777


def test_the_collector_takes_its_environment(place: Place) -> None:
    collector = place.services["collector"]
    place.lay_out(collector)
    settings = from_environment(environment=place.environment(collector))
    assert (place.folder / "secrets" / "token").read_text() == settings.token
    assert (f"http://{place.address('alertmanager')}",) == settings.alertmanagers
    assert 90 == settings.keep_days


def test_receivers_of_ones_own_are_taken_in_place_of_the_shipped_ones() -> None:
    own = {**FILLED, "AMMETER_ALERTMANAGER_FILE": "./alerts/alertmanager.yaml"}
    shipped, chosen = (
        next(service for service in compose.services(given) if service.name == "alertmanager")
        for given in (FILLED, own)
    )
    inside = "/etc/alertmanager/alertmanager.yaml"
    assert ROOT / "deploy" / "alertmanager.yaml" == shipped.mounts[inside]
    assert ROOT / "alerts" / "alertmanager.yaml" == chosen.mounts[inside]


def test_what_devices_cost_comes_from_the_environment() -> None:
    given = {**FILLED, "AMMETER_COST_PER_HOUR": "NVIDIA H200=4.10,*=1.00"}
    (collector,) = (service for service in compose.services(given) if service.name == "collector")
    said = {name: value for name, value in collector.environment.items() if "COST" in name}
    assert (("NVIDIA H200", 4.1), ("*", 1.0)) == from_environment(environment=said).cost_per_hour


@pytest.mark.parametrize(("given", "trusted"), [("", ()), ("172.18.0.1", ("172.18.0.1/32",))])
def test_a_proxy_in_front_can_be_named(given: str, trusted: tuple[str, ...]) -> None:
    (collector,) = (
        service
        for service in compose.services({**FILLED, "AMMETER_TRUSTED_PROXIES": given})
        if service.name == "collector"
    )
    said = {name: value for name, value in collector.environment.items() if "PROXIES" in name}
    assert said
    assert trusted == from_environment(environment=said).trusted_proxies


def test_prometheus_takes_its_configuration(place: Place) -> None:
    prometheus = place.services["prometheus"]
    place.lay_out(prometheus)
    file = place.path(prometheus, "/etc/prometheus/prometheus.yaml")
    done = subprocess.run([need("promtool"), "check", "config", str(file)], capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    assert "SUCCESS: 0 rules" not in done.stdout
    jobs = {job["job_name"]: job for job in yaml.safe_load(file.read_text())["scrape_configs"]}
    assert ["ammeter", "ammeter-collector"] == list(jobs)
    assert [place.address("collector")] == jobs["ammeter"]["static_configs"][0]["targets"]


def test_alertmanager_takes_its_configuration_and_tells_the_receiver(place: Place) -> None:
    alertmanager = place.services["alertmanager"]
    place.lay_out(alertmanager)
    file = place.path(alertmanager, "/etc/alertmanager/alertmanager.yaml")
    done = subprocess.run([need("amtool"), "check-config", str(file)], capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    document = yaml.safe_load(file.read_text())
    urls = [webhook["url"] for receiver in document["receivers"] for webhook in receiver["webhook_configs"]]
    assert [f"http://{place.address('pages')}/{name}" for name in ("page", "ticket", "watchdog")] == urls


def test_grafana_finds_prometheus_and_the_boards() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    services = {service.name: service for service in compose.services(FILLED)}
    assert f"http://prometheus:{services['prometheus'].port}" == source["url"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "ammeter.yaml").read_text())["providers"]
    mounts = services["grafana"].mounts
    assert ROOT / "dashboards" / "boards" == mounts[provider["options"]["path"]]
    assert provisioning == mounts["/etc/grafana/provisioning"]


def test_what_is_generated_is_what_the_tree_makes() -> None:
    generated = generate.files()
    assert {"alerts/ammeter.rules.yaml", "deploy/rules.yaml", "deploy/alertmanager.yaml"} <= generated.keys()
    for path, text in generated.items():
        assert text == (ROOT / path).read_text(), f"{path}: run: make deploy"


def test_prometheus_has_no_alert_that_the_collector_posts_itself() -> None:
    groups: list[dict[str, Any]] = generate.rules()["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    assert alerts
    assert [] == [rule["alert"] for rule in alerts if "ammeter_incident_active" in rule["expr"]]
