"""The collector's settings, and the only reader of the environment.

Invalid settings fail at start-up with their name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlsplit

from ammeter_server.config import prices, values
from ammeter_server.config.links import Links
from ammeter_server.config.notify_routes import Route
from ammeter_server.config.prices import Prices
from ammeter_server.config.values import is_loopback

PREFIX = "AMMETER_SERVER_"

Result = TypeVar("Result")


class SettingsError(ValueError):
    """An invalid setting; the message has its name, the value and the remedy."""


@dataclass(frozen=True)
class Settings:
    """The collector's settings; docs/settings.md describes each.

    Attributes:
        database_url: sqlite:///file or postgresql://...
        notify: Apprise URLs.
        routes: Apprise URLs that receive only some incidents.
        alertmanagers: URLs of all members of a cluster. If set, the collector pages, and Prometheus does not.
        public_url: Address of the page for people.
        runbook_url: Parent address of runbooks that are available while the collector is down.
        grafana_url, alertmanager_page, log_url: Addresses of other tools, to which the page links.
        tls_cert, tls_key: PEM files.
        trusted_proxies: Networks whose X-Forwarded-For and X-Forwarded-Proto are trusted.
        max_body_bytes: Maximum bytes of a batch as received.
        max_unpacked_bytes: Maximum bytes of all blocks of a batch together, unpacked.
        keep_days: Age in days from which data is deleted; 0 keeps all.
        keep_bytes: Size of the database from which the oldest data is deleted; 0 keeps all.
        objective_runs: Share of runs that should end normally.
        objective_steps: Share of steps that should be applied.
        objective_finite: Share of runs that should end with finite numbers.
        objective_validation: Share of runs with a baseline whose validation should hold.
        objective_time: Share of runs with an expected time that should finish within it.
        cost_per_hour: Price of a device, by its model.
        cores: "one" keeps all threads on one core, or "all".
    """

    database_url: str = field(
        default_factory=lambda: f"sqlite:///{Path.home() / '.ammeter' / 'collector.db'}", repr=False
    )
    host: str = "127.0.0.1"
    port: int = 8480
    notify: tuple[str, ...] = field(default=(), repr=False)
    routes: tuple[Route, ...] = field(default=(), repr=False)
    alertmanagers: tuple[str, ...] = field(default=(), repr=False)
    token: str = field(default="", repr=False)
    public_url: str = ""
    runbook_url: str = ""
    grafana_url: str = ""
    alertmanager_page: str = ""
    log_url: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    trusted_proxies: tuple[str, ...] = ()
    max_body_bytes: int = 16 * 2**20
    max_unpacked_bytes: int = 128 * 2**20
    keep_days: int = 0
    keep_bytes: int = 0
    objective_runs: float = 0.95
    objective_steps: float = 0.99
    objective_finite: float = 0.98
    objective_validation: float = 0.95
    objective_time: float = 0.9
    cost_per_hour: Prices = ()
    cores: str = "one"

    def __post_init__(self) -> None:
        _check("DATABASE_URL", values.check_database, self.database_url)
        _check("PORT", values.check_port, self.port)
        for url in self.notify:
            _check("NOTIFY", values.check_notify, url)
        _check("PUBLIC_URL", values.check_public_url, self.public_url)
        _check("RUNBOOK_URL", values.check_runbook_url, self.runbook_url)
        _check("GRAFANA_URL", values.check_page, self.grafana_url)
        _check("ALERTMANAGER_PAGE", values.check_page, self.alertmanager_page)
        _check("LOG_URL", values.check_log_url, self.log_url)
        for url in self.alertmanagers:
            _check("ALERTMANAGER_URL", values.check_alertmanager, url)
        _check("TLS_CERT" if self.tls_cert else "TLS_KEY", values.check_tls, self.tls_cert, self.tls_key)
        _check("CORES", values.check_cores, self.cores)
        if not self.token and not is_loopback(self.host):
            raise SettingsError(
                f"{PREFIX}HOST is {self.host!r}, which others can reach, and there is no token; "
                f"set {PREFIX}TOKEN_FILE to a file with a long random token, or use 127.0.0.1"
            )

    @property
    def page_url(self) -> str:
        """The base address of links in notifications, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "https" if self.tls_cert else "http"
        return (self.public_url or f"{scheme}://{host}:{self.port}").rstrip("/")

    @property
    def links(self) -> Links:
        """Builder of links for people."""
        return Links(self.page_url, self.runbook_url, self.grafana_url, self.alertmanager_page, self.log_url)


READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "database_url": ("DATABASE_URL", str),
    "host": ("HOST", str),
    "port": ("PORT", values.port),
    "notify": ("NOTIFY", values.urls),
    "routes": ("NOTIFY_FILE", values.routes),
    "alertmanagers": ("ALERTMANAGER_URL", values.urls),
    "token": ("TOKEN_FILE", values.token),
    "public_url": ("PUBLIC_URL", str),
    "runbook_url": ("RUNBOOK_URL", str),
    "grafana_url": ("GRAFANA_URL", str),
    "alertmanager_page": ("ALERTMANAGER_PAGE", str),
    "log_url": ("LOG_URL", str),
    "tls_cert": ("TLS_CERT", str),
    "tls_key": ("TLS_KEY", str),
    "trusted_proxies": ("TRUSTED_PROXIES", values.networks),
    "keep_days": ("KEEP_DAYS", values.days),
    "keep_bytes": ("KEEP_BYTES", values.size),
    "objective_runs": ("OBJECTIVE_RUNS", values.share),
    "objective_steps": ("OBJECTIVE_STEPS", values.share),
    "objective_finite": ("OBJECTIVE_FINITE", values.share),
    "objective_validation": ("OBJECTIVE_VALIDATION", values.share),
    "objective_time": ("OBJECTIVE_TIME", values.share),
    "cost_per_hour": ("COST_PER_HOUR", prices.read),
    "cores": ("CORES", str),
}
"""Field -> its name in the environment without the prefix, and the reader of its text."""


def from_environment(
    options: Mapping[str, object] = MappingProxyType({}), environment: Mapping[str, str] = os.environ
) -> Settings:
    """Reads the settings from the environment.

    Args:
        options: Values of the command line; they take precedence unless they are None.
    """
    fields: dict[str, object] = {}
    for field_name, (name, read) in READERS.items():
        text = environment.get(PREFIX + name, "").strip()
        if text:
            fields[field_name] = _check(name, read, text)
    fields.update((name, value) for name, value in options.items() if value is not None)
    return Settings(**fields)  # type: ignore[arg-type]


def is_private_to_this_machine(settings: Settings) -> bool:
    """Whether its listen address and its public URL limit the collector to this machine."""
    public = urlsplit(settings.public_url).hostname
    return is_loopback(settings.host) and (public is None or is_loopback(public))


def _check(name: str, function: Callable[..., Result], *arguments: object) -> Result:
    """Calls a function of config/values.py, and adds the name of the setting to its error."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}{name} {error}") from error
