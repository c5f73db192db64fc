"""The collector's settings, and the only reader of the environment.

Invalid settings fail at start-up with their name.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from ammeter_server.config import prices
from ammeter_server.config.links import PLACE, Links
from ammeter_server.config.notify_routes import Route, read
from ammeter_server.config.prices import Prices
from ammeter_server.db.engine import database_file

PREFIX = "AMMETER_SERVER_"


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
        _check_database(self.database_url)
        _check_port(self.port)
        for url in self.notify:
            _check_url("NOTIFY", url, "an Apprise URL such as json://127.0.0.1:9999/")
        if self.public_url:
            _check_url("PUBLIC_URL", self.public_url, "a URL such as http://collector.example:8480")
        if self.runbook_url:
            _check_runbooks(self.runbook_url)
        for url in self.alertmanagers:
            _check_alertmanager(url)
        _check_tls(self.tls_cert, self.tls_key)
        if self.cores not in ("one", "all"):
            raise SettingsError(f"{PREFIX}CORES is {self.cores[:80]!r}; use one or all")
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
        return Links(self.page_url, self.runbook_url)


def from_environment(
    given: Mapping[str, object] = MappingProxyType({}), environment: Mapping[str, str] = os.environ
) -> Settings:
    """Reads the settings from the environment.

    Args:
        given: Values that take precedence unless they are None: options of the command line.
    """
    said: dict[str, object] = {}
    for name in ("database_url", "host", "public_url", "runbook_url", "tls_cert", "tls_key", "cores"):
        said[name] = environment.get(PREFIX + name.upper(), "").strip()
    said["port"] = _whole("PORT", environment, "a number from 1 to 65535, such as 8480")
    said["keep_days"] = _days(environment.get(PREFIX + "KEEP_DAYS", "").strip())
    said["keep_bytes"] = _bytes(environment.get(PREFIX + "KEEP_BYTES", "").strip())
    for name in ("objective_runs", "objective_steps", "objective_finite", "objective_validation", "objective_time"):
        said[name] = _share(PREFIX + name.upper(), environment)
    said["cost_per_hour"] = _prices(environment.get(PREFIX + "COST_PER_HOUR", ""))
    said["trusted_proxies"] = _networks(environment.get(PREFIX + "TRUSTED_PROXIES", ""))
    said["notify"] = split_urls(environment.get(PREFIX + "NOTIFY", ""))
    said["alertmanagers"] = split_urls(environment.get(PREFIX + "ALERTMANAGER_URL", ""))
    said["routes"] = _routes(environment.get(PREFIX + "NOTIFY_FILE", "").strip())
    said["token"] = _token(environment.get(PREFIX + "TOKEN_FILE", "").strip())
    said = {name: value for name, value in said.items() if value not in (None, "", ())}
    said.update((name, value) for name, value in given.items() if value is not None)
    return Settings(**said)  # type: ignore[arg-type]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_private_to_this_machine(settings: Settings) -> bool:
    """Whether its listen address and its public URL limit the collector to this machine."""
    public = urlsplit(settings.public_url).hostname
    return is_loopback(settings.host) and (public is None or is_loopback(public))


def split_urls(text: str) -> tuple[str, ...]:
    """Splits URLs at spaces, and at commas that a new scheme follows."""
    return tuple(url for url in re.split(r"\s+|,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)", text.strip(" ,\t\r\n")) if url)


def _whole(name: str, environment: Mapping[str, str], remedy: str) -> int | None:
    text = environment.get(PREFIX + name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise SettingsError(f"{PREFIX}{name} is {text!r}; use {remedy}")
    return int(text)


def _networks(text: str) -> tuple[str, ...]:
    """Splits addresses and networks at spaces and commas; each becomes a network."""
    try:
        return tuple(str(ipaddress.ip_network(network, strict=False)) for network in text.replace(",", " ").split())
    except ValueError as error:
        raise SettingsError(
            f"{PREFIX}TRUSTED_PROXIES is {text[:200]!r}: {error}; use addresses or networks such as 127.0.0.1 "
            "10.1.0.0/16, those of your proxies only"
        ) from error


def _days(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        raise SettingsError(f"{PREFIX}KEEP_DAYS is {text[:80]!r}; use a number of days such as 90, or 0 to keep all")
    return int(text)


def _bytes(text: str) -> int | None:
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,15}) ?([KMGT]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    if not found:
        raise SettingsError(f"{PREFIX}KEEP_BYTES is {text[:80]!r}; use a size such as 50G, or 0 to keep all")
    factor: int = 1024 ** " KMGT".index(found[2].upper() or " ")
    return int(found[1]) * factor


def _share(name: str, environment: Mapping[str, str]) -> float | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.5 < share < 1:
        raise SettingsError(f"{name} is {text[:80]!r}; use a share above 0.5 and below 1, such as 0.99")
    return share


def _prices(text: str) -> Prices:
    try:
        return prices.read(text)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}COST_PER_HOUR {error}") from error


def _check_port(port: int) -> None:
    if not 0 < port < 65536:
        raise SettingsError(f"{PREFIX}PORT is {port}; use a number from 1 to 65535, such as 8480")


def _check_tls(cert: str, key: str) -> None:
    if not cert and not key:
        return
    if not cert or not key:
        raise SettingsError(f"{PREFIX}TLS_CERT and {PREFIX}TLS_KEY go together; set both to PEM files, or neither")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        remedy = "name a readable PEM file with the chain, and one with its key"
        raise SettingsError(f"{PREFIX}TLS_CERT is {cert!r} and {PREFIX}TLS_KEY {key!r}: {error}; {remedy}") from error


def _check_database(url: str) -> None:
    try:
        database_file(url)
    except ValueError as error:
        remedy = "use sqlite:////folder/collector.db or postgresql://user@host/database"
        raise SettingsError(f"{PREFIX}DATABASE_URL {error}; {remedy}") from error


def _check_url(name: str, url: str, remedy: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SettingsError(f"{PREFIX}{name} holds what is no URL ({error}); use {remedy}") from error
    if not parts.scheme or "://" not in url:
        raise SettingsError(f"{PREFIX}{name} holds {url.partition(':')[0]!r}, which is no URL; use {remedy}")


def _check_runbooks(url: str) -> None:
    remedy = f"a URL such as https://wiki.example/ammeter, or one with {PLACE} where the runbook's name belongs"
    _check_url("RUNBOOK_URL", url, remedy)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "{" in url.replace(PLACE, ""):
        raise SettingsError(f"{PREFIX}RUNBOOK_URL is {url[:200]!r}; use {remedy}")


def _check_alertmanager(url: str) -> None:
    remedy = "a URL such as http://127.0.0.1:9093; several between commas, one for each member of a cluster"
    _check_url("ALERTMANAGER_URL", url, remedy)
    parts = urlsplit(url)
    told = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"[:200]
    try:
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise SettingsError(f"{PREFIX}ALERTMANAGER_URL holds {told!r}; use {remedy}")
    if parts.query or parts.fragment or "?" in url:
        raise SettingsError(
            f"{PREFIX}ALERTMANAGER_URL holds {told!r} with a query or fragment, which would be lost; leave it out, and"
            " write a user and a password as https://user:password@host, which are sent as basic authentication"
        )


def _routes(path: str) -> tuple[Route, ...]:
    try:
        return read(Path(path)) if path else ()
    except (OSError, ValueError) as error:
        remedy = "name a readable file with an Apprise URL in each line"
        raise SettingsError(f"{PREFIX}NOTIFY_FILE is {path!r}: {error}; {remedy}") from error


def _token(path: str) -> str:
    if not path:
        return ""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{PREFIX}TOKEN_FILE is {path!r}: {error}; name a readable file with one token") from error
    if len(token) < 16 or any(sign.isspace() for sign in token):
        raise SettingsError(
            f"{PREFIX}TOKEN_FILE is {path!r} and holds {len(token)} characters; "
            "use one token of at least 16 without spaces, such as `openssl rand -hex 32` writes"
        )
    return token
