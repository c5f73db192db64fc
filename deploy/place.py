"""A local folder in place of containers: translates a service's command, environment and files.

Addresses become free loopback ports, and paths become paths in the folder. Everything else stays the same.
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.compose import Service


@dataclass(frozen=True)
class Place:
    """Local folder and ports of the services.

    ports: port in the compose file -> local port. missing: services that do not run here.
    """

    folder: Path
    services: Mapping[str, Service]
    ports: Mapping[int, int]
    missing: frozenset[str] = field(default=frozenset())

    def address(self, name: str) -> str:
        """Returns HOST:PORT of a service."""
        port = self.services[name].port
        assert port is not None, f"{name} listens nowhere"
        return f"127.0.0.1:{self.ports[port]}"

    def path(self, service: Service, inside: str) -> Path:
        """Returns the local path for a path in the service's container."""
        return self.folder / service.name / inside.lstrip("/")

    def localized(self, service: Service, text: str) -> str:
        """Translates a word, a value or a file of the service to this machine."""
        if text == "0.0.0.0":
            return "127.0.0.1"
        if text.isdigit() and int(text) in self.ports:
            return str(self.ports[int(text)])
        names = "|".join(map(re.escape, self.services))
        text = re.sub(rf"(?<![\w.-])(?:{names}|0\.0\.0\.0|127\.0\.0\.1):(\d+)", self._address, text)
        for inside in sorted(service.mounts, key=len, reverse=True):
            text = re.sub(rf"(?<![\w./-]){re.escape(inside)}(?![\w.-])", str(self.path(service, inside)), text)
        return text

    def environment(self, service: Service) -> dict[str, str]:
        """Returns the environment without variables that refer to services which do not run here."""
        missing_addresses = [f"{name}:{self.services[name].port}" for name in self.missing]
        usable = {
            name: value
            for name, value in service.environment.items()
            if not any(address in value for address in missing_addresses)
        }
        return {name: self.localized(service, value) for name, value in usable.items()}

    def lay_out(self, service: Service) -> None:
        """Writes the files that it mounts, and makes its volumes."""
        for inside, source in service.mounts.items():
            target = self.path(service, inside)
            if source is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(self.localized(service, source.read_text()))
            shutil.copymode(source, target)

    def _address(self, match: re.Match[str]) -> str:
        port = int(match[1])
        return f"127.0.0.1:{self.ports[port]}" if port in self.ports else match[0]


def lay_ports(services: Iterable[Service], chosen: Mapping[str, int]) -> dict[int, int]:
    """Returns a port for each listening service: the given one, else a free one."""
    listening = [(service.name, service.port) for service in services if service.port is not None]
    with_free = zip(listening, _free(len(listening)), strict=True)
    return {port: chosen.get(name, free) for (name, port), free in with_free}


def _free(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
