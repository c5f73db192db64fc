"""Manifests of Kubernetes as tests read them, and their schemas."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from deploy.compose import ROOT

BASE = ROOT / "deploy" / "kubernetes"
SCHEMAS = Path(__file__).parent / "schemas"
VERSION: str = tomllib.loads((ROOT / "server" / "pyproject.toml").read_text())["project"]["version"]


def closed(schema: Any) -> Any:
    """The schema of a custom resource as the API server takes it: what it does not name is refused."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inside = {key: closed(inner) for key, inner in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        inside.setdefault("additionalProperties", False)
    return inside


CORE = json.loads((SCHEMAS / "kubernetes.json").read_text())["definitions"]
CUSTOM = {
    kind: schema
    for name in ("prometheus-operator", "job-operators")
    for kind, schema in json.loads((SCHEMAS / f"{name}.json").read_text())["definitions"].items()
}


def schema_of(thing: dict[str, Any]) -> dict[str, Any]:
    if thing["kind"] in CUSTOM:
        metadata = {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
        schema = closed(CUSTOM[thing["kind"]])
        return {**schema, "properties": {**schema["properties"], "metadata": metadata}, "definitions": CORE}
    group, _, version = thing["apiVersion"].rpartition("/")
    group = group.removesuffix(".k8s.io")
    return {"$ref": f"#/definitions/io.k8s.api.{group or 'core'}.{version}.{thing['kind']}", "definitions": CORE}


def wrong(thing: dict[str, Any]) -> list[str]:
    return [
        f"{error.instance_path}: {error.message}"
        for error in jsonschema_rs.validator_for(schema_of(thing)).iter_errors(thing)
    ]


def kustomization(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return document


def things(folder: Path = BASE) -> Iterator[dict[str, Any]]:
    """The objects of a kustomization, before its labels."""
    for name in kustomization(folder).get("resources", []):
        there = (folder / name).resolve()
        if there.is_dir():
            yield from things(there)
        else:
            yield from (thing for thing in yaml.safe_load_all(there.read_text()) if thing)
    for generator in kustomization(folder).get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in generator["files"]}
        metadata = {"name": generator["name"], **generator["options"]}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def named(thing: dict[str, Any]) -> str:
    return f"{thing['kind']} {thing['metadata']['name']}"
