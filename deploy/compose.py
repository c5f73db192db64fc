"""Parses docker-compose.yml: its services, their commands, mounts and dependencies, in start order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"\$\{(\w+)(?::(\?|-)([^}]*))?\}")

LISTENS = re.compile(r"(?:127\.0\.0\.1:|-p )(\d+)")


class UnsetError(Exception):
    """Raised for an unset variable that the file requires, with the remedy from the file."""


@dataclass(frozen=True)
class Service:
    """One service of the compose file.

    words: the command, program first; empty if the image defines it. mounts: path inside -> file or folder of the
    repository, or None for a volume. health: command that exits with 0 once the service is healthy. after: services
    that must be healthy, or completed, before this one.
    """

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: Mapping[str, Path | None]
    health: tuple[str, ...]
    after: tuple[str, ...]
    stop_signal: str

    @property
    def ends(self) -> bool:
        """Whether the service runs once and ends."""
        return not self.health

    @property
    def port(self) -> int | None:
        """The port on which it listens, taken from its health check."""
        match = LISTENS.search(" ".join(self.health))
        return int(match[1]) if match else None


def services(variables: Mapping[str, str], file: Path = FILE) -> list[Service]:
    """Returns the services in start order.

    Raises UnsetError if a required variable is missing.
    """
    content = _filled(yaml.safe_load(file.read_text()), variables)
    secrets = {name: Path(definition["file"]) for name, definition in content.get("secrets", {}).items()}
    by_name = {
        name: _service(name, definition, secrets, file.parent) for name, definition in content["services"].items()
    }
    return [
        by_name[name]
        for name in TopologicalSorter({name: service.after for name, service in by_name.items()}).static_order()
    ]


def _service(name: str, content: dict[str, Any], secrets: Mapping[str, Path], root: Path) -> Service:
    mounts: dict[str, Path | None] = {}
    for volume in content.get("volumes", ()):
        source, target = volume.split(":")[:2]
        mounts[target] = root / source if source.startswith(".") else None
    mounts |= {f"/run/secrets/{secret}": root / secrets[secret] for secret in content.get("secrets", ())}
    return Service(
        name=name,
        words=(*content.get("entrypoint", ()), *content.get("command", ())),
        environment={key: str(value) for key, value in content.get("environment", {}).items()},
        mounts=mounts,
        health=tuple(content.get("healthcheck", {}).get("test", ())[1:]),
        after=tuple(content.get("depends_on", ())),
        stop_signal=content.get("stop_signal", "SIGTERM"),
    )


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Replaces each ${NAME}, ${NAME:-default} and ${NAME:?remedy} in a value."""
    if isinstance(value, dict):
        return {key: _filled(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(item, variables) for item in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        setting = variables.get(name, "")
        if not setting and kind == "?":
            raise UnsetError(f"{name} is not set: {text}")
        return setting or (text if kind == "-" else "")

    return VARIABLE.sub(fill, value)
