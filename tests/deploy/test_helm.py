"""The chart makes the objects of the kustomize base, with few expressions of Helm, which this test expands itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml

from deploy.compose import ROOT
from tests.deploy.manifests import BASE, VERSION, kustomization, named, things, wrong

CHART = ROOT / "deploy" / "helm" / "ammeter"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())

_SWITCHED = re.compile(r"\A\{\{- if \.Values\.(\w+) \}\}\n(.*)\{\{- end \}\}\n\Z", re.DOTALL)
_EXPRESSION = re.compile(r"\{\{ (.*?) \}\}")
_VALUE = re.compile(r"\.Values\.([\w.]+)( \| quote)?")
_FILE = re.compile(r'\.Files\.Get "(.+)" \| replace "(.+)" \.Values\.(\w+) \| indent (\d+)')
_FILES = re.compile(r'\(\.Files\.Glob "(.+)"\)\.AsConfig \| indent (\d+)')


def value(values: dict[str, Any], path: str) -> Any:
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found


def indented(text: str, spaces: str) -> str:
    return "\n".join(" " * int(spaces) + line for line in text.split("\n"))


def expanded(expression: str, values: dict[str, Any]) -> str:
    """What Helm puts in the place of an expression; one that the chart has no need of fails."""
    if match := _VALUE.fullmatch(expression):
        found = value(values, match[1])
        return json.dumps(str(found)) if match[2] else str(found)
    if match := _FILE.fullmatch(expression):
        return indented((CHART / match[1]).read_text().replace(match[2], value(values, match[3])), match[4])
    if match := _FILES.fullmatch(expression):
        files = {path.name: path.read_text() for path in sorted(CHART.glob(match[1]))}
        return indented(yaml.safe_dump(files), match[2])
    raise AssertionError(f"the chart uses {expression!r}, which this test does not know")


def rendered(**changed: Any) -> Iterator[dict[str, Any]]:
    values = {**VALUES, **changed}
    for path in sorted((CHART / "templates").glob("*.yaml")):
        text = path.read_text()
        if switch := _SWITCHED.match(text):
            text = switch[2] if values[switch[1]] else ""
        text = _EXPRESSION.sub(lambda found: expanded(found[1], values), text)
        yield from (thing for thing in yaml.safe_load_all(text) if thing)


def based() -> dict[str, dict[str, Any]]:
    """The objects of the base, with the labels that kustomize adds."""
    (labels,) = (pair["pairs"] for pair in kustomization(BASE)["labels"])
    found = {named(thing): thing for thing in things()}
    for thing in found.values():
        metadata = {key: inner for key, inner in thing["metadata"].items() if key != "disableNameSuffixHash"}
        thing["metadata"] = {**metadata, "labels": {**metadata.get("labels", {}), **labels}}
    return found


def test_the_chart_makes_the_objects_of_the_base() -> None:
    assert based() == {named(thing): thing for thing in rendered()}


@pytest.mark.parametrize("thing", [*rendered()], ids=named)
def test_everything_is_what_its_schema_wants(thing: dict[str, Any]) -> None:
    assert [] == wrong(thing)


def test_without_monitoring_and_boards_nothing_needs_prometheus_or_grafana() -> None:
    kinds = {thing["kind"] for thing in rendered(monitoring=False, boards=False)}
    assert {"Deployment", "Service", "PodDisruptionBudget"} == kinds


def test_every_value_is_used_where_it_belongs() -> None:
    changed: dict[str, Any] = {
        "secret": "other",
        "image": {"repository": "registry.example/collector", "tag": "9.9"},
        "replicas": 5,
        "alertmanagerUrl": "http://am:9093",
        "publicUrl": "https://ammeter.example",
        "runbookUrl": "https://runbooks.example",
        "trustedProxies": "10.1.2.0/24",
        "keepDays": 7,
        "resources": {"cpu": "2", "memory": "3Gi", "memoryLimit": "4Gi"},
    }
    assert changed.keys() | {"monitoring", "boards"} == VALUES.keys()
    text = json.dumps(list(rendered(**changed)))
    for word in (
        *('"name": "other", "key": "token"', '"name": "other", "key": "database-url"', '"secretName": "other"'),
        *('"registry.example/collector:9.9"', '"replicas": 5', '"http://am:9093"', '"https://ammeter.example"'),
        *("https://runbooks.example/runbooks/", '"10.1.2.0/24"', '"value": "7"', '"cpu": 2', '"memory": "3Gi"'),
        '"limits": {"memory": "4Gi"}',
    ):
        assert word in text, word
    assert "127.0.0.1" not in text


def test_the_values_are_what_their_schema_wants_and_a_wrong_one_is_refused() -> None:
    check = jsonschema_rs.validator_for(SCHEMA)
    assert check.is_valid(VALUES)
    for name, wrong_value in {"token": "t" * 32, "replicas": 0, "publicUrl": "ammeter:8480", "keepDays": "90"}.items():
        assert not check.is_valid({**VALUES, name: wrong_value}), name


def test_no_secret_is_in_the_values_or_made_by_the_chart() -> None:
    assert "Secret" not in {thing["kind"] for thing in rendered()}
    assert not {"token", "password", "databaseUrl"} & VALUES.keys()


def test_chart_and_image_have_the_version_of_the_collector() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {VERSION} == {chart["version"], chart["appVersion"], VALUES["image"]["tag"]}


def test_the_files_of_the_chart_are_those_of_the_tree() -> None:
    assert (ROOT / "deploy" / "rules.yaml") == (CHART / "files" / "rules.yaml").resolve()
    assert (ROOT / "dashboards" / "boards") == (CHART / "files" / "boards").resolve()
