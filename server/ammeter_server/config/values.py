"""Reads and checks the text of single settings.

Each function raises ValueError with the value and the remedy; settings.py adds the name of the setting.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from contextlib import suppress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ammeter_server.config import notify_routes
from ammeter_server.config.links import LOG_PLACEHOLDERS, PLACEHOLDER
from ammeter_server.config.notify_routes import Route
from ammeter_server.db.engine import database_file

MIN_TOKEN_CHARS = 16
MAX_SHOWN_CHARS = 80
"""Maximum characters of a value in an error."""


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError(f"is {text!r}; use a number from 1 to 65535, such as 8480")
    return int(text)


def days(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
        raise ValueError(f"is {text[:MAX_SHOWN_CHARS]!r}; use a number of days such as 90, or 0 to keep all")
    return int(text)


def size(text: str) -> int:
    """Bytes of a size such as 50G."""
    match = re.fullmatch(r"([0-9]{1,15}) ?([KMGT]?)(?:i?B)?", text, re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"is {text[:MAX_SHOWN_CHARS]!r}; use a size such as 50G, or 0 to keep all")
    factor: int = 1024 ** " KMGT".index(match[2].upper() or " ")
    return int(match[1]) * factor


def share(text: str) -> float:
    with suppress(ValueError):
        if 0.5 < float(text) < 1:
            return float(text)
    raise ValueError(f"is {text[:MAX_SHOWN_CHARS]!r}; use a share above 0.5 and below 1, such as 0.99")


def urls(text: str) -> tuple[str, ...]:
    """Splits URLs at spaces, and at commas that a new scheme follows."""
    return tuple(url for url in re.split(r"\s+|,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)", text.strip(" ,\t\r\n")) if url)


def networks(text: str) -> tuple[str, ...]:
    """Splits addresses and networks at spaces and commas; each becomes a network."""
    try:
        return tuple(str(ipaddress.ip_network(network, strict=False)) for network in text.replace(",", " ").split())
    except ValueError as error:
        raise ValueError(
            f"is {text[:200]!r}: {error}; use addresses or networks such as 127.0.0.1 10.1.0.0/16, those of your "
            "proxies only"
        ) from error


def routes(path: str) -> tuple[Route, ...]:
    """Reads the routes of a file."""
    try:
        return notify_routes.read(Path(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"is {path!r}: {error}; name a readable file with an Apprise URL in each line") from error


def token(path: str) -> str:
    """Reads the token of a file."""
    try:
        content = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"is {path!r}: {error}; name a readable file with one token") from error
    if len(content) < MIN_TOKEN_CHARS or any(char.isspace() for char in content):
        raise ValueError(
            f"is {path!r}, a file of {len(content)} characters; use one token of at least {MIN_TOKEN_CHARS} without "
            "spaces, such as `openssl rand -hex 32` writes"
        )
    return content


def check_database(url: str) -> None:
    try:
        database_file(url)
    except ValueError as error:
        raise ValueError(f"{error}; use sqlite:////folder/collector.db or postgresql://user@host/database") from error


def check_port(number: int) -> None:
    if not 0 < number < 65536:
        raise ValueError(f"is {number}; use a number from 1 to 65535, such as 8480")


def check_cores(name: str) -> None:
    if name not in ("one", "all"):
        raise ValueError(f"is {name[:MAX_SHOWN_CHARS]!r}; use one or all")


def check_notify(url: str) -> None:
    _parse_url(url, "an Apprise URL such as json://127.0.0.1:9999/")


def check_public_url(url: str) -> None:
    if url:
        _parse_url(url, "a URL such as http://collector.example:8480")


def check_runbook_url(url: str) -> None:
    if not url:
        return
    remedy = f"a URL such as https://wiki.example/ammeter, or one with {PLACEHOLDER} where the runbook's name belongs"
    parts = _parse_url(url, remedy)
    if parts.scheme not in ("http", "https") or not parts.hostname or "{" in url.replace(PLACEHOLDER, ""):
        raise ValueError(f"is {url[:200]!r}; use {remedy}")


def check_page(url: str) -> None:
    """Checks the address of another tool, which people open in a browser."""
    if url:
        _check_web_address(url, "a URL such as https://grafana.example")


def check_log_url(url: str) -> None:
    if not url:
        return
    known = ", ".join(f"{{{name}}}" for name in LOG_PLACEHOLDERS)
    remedy = f"a URL such as https://logs.example/search?run={{run}}&host={{host}}, with {known}"
    plain = url
    for name in LOG_PLACEHOLDERS:
        plain = plain.replace(f"{{{name}}}", "x")
    _check_web_address(plain, remedy)
    if "{" in plain or plain == url:
        raise ValueError(f"is {url[:200]!r}, which names no run; use {remedy}")


def _check_web_address(url: str, remedy: str) -> None:
    parts = _parse_url(url, remedy)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError(f"is an address of {parts.scheme}; use {remedy}, without a user and a password")


def check_alertmanager(url: str) -> None:
    remedy = "a URL such as http://127.0.0.1:9093; several between commas, one for each member of a cluster"
    parts = _parse_url(url, remedy)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"[:200]
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"contains {shown!r}; use {remedy}")
    if parts.query or parts.fragment or "?" in url:
        raise ValueError(
            f"contains {shown!r} with a query or fragment, which would be lost; remove it, and write a user and a "
            "password as https://user:password@host, which are sent as basic authentication"
        )


def check_tls(cert: str, key: str) -> None:
    """Checks a pair of PEM files."""
    if not cert and not key:
        return
    if not cert or not key:
        raise ValueError("is set alone; set AMMETER_SERVER_TLS_CERT and AMMETER_SERVER_TLS_KEY to PEM files, or none")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        remedy = "name a readable PEM file with the chain, and one with its key"
        raise ValueError(f"is {cert!r} and AMMETER_SERVER_TLS_KEY {key!r}: {error}; {remedy}") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _parse_url(url: str, remedy: str) -> SplitResult:
    """Splits a URL. The message has its scheme only, because the rest may contain secrets."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"contains an invalid URL ({error}); use {remedy}") from error
    if not parts.scheme or "://" not in url:
        raise ValueError(f"contains {url.partition(':')[0]!r}, which is no URL; use {remedy}")
    return parts
