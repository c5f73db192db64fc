"""The agent's settings: what watch() was given, else AMMETER_* in the environment, else the default."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT_DIR = "~/.ammeter"
DEFAULT_BUDGET = 0.01
DEFAULT_FLUSH = 5.0
MAX_FLUSH = 3600.0


@dataclass(frozen=True)
class Settings:
    """url: collector, None for none. dir: where journals lie. budget: share of step time. flush: seconds that
    close() waits at most for the collector's acknowledgement, 0 for never."""

    url: str | None
    token: str | None
    dir: Path
    budget: float
    flush: float


@dataclass(frozen=True)
class Launched:
    """What `ammeter run` hands on to the processes it starts. name, project: '' for none said. profile: whether
    kernels are to be named. tags, config: of the run."""

    name: str
    project: str
    preset: str
    profile: bool
    tags: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


def silenced(environment: Mapping[str, str] = os.environ) -> str:
    """The verdicts that AMMETER_SILENCE names, between commas."""
    return environment.get("AMMETER_SILENCE", "")


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """What `ammeter run` was told, for the process in which training is watched."""
    return Launched(
        name=environment.get("AMMETER_NAME", ""),
        project=environment.get("AMMETER_PROJECT", ""),
        preset=environment.get("AMMETER_PRESET", "") or "default",
        profile=environment.get("AMMETER_PROFILE", "").strip().lower() not in _NO,
        tags={key: str(value) for key, value in _object(environment, "AMMETER_TAGS").items()},
        config=_object(environment, "AMMETER_CONFIG"),
    )


def settings(
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Raises ValueError, naming the value and the remedy, for one that cannot be used, OSError for a missing home."""
    said_url = url or environment.get("AMMETER_URL") or None
    if said_url and not said_url.startswith(("http://", "https://")):
        name = "url" if url else "AMMETER_URL"
        from ammeter.redaction import text  # not where Ammeter is disabled: then nothing else of it is loaded

        raise ValueError(f"{name} is {text(said_url, 200)!r}; use http:// or https://, such as http://127.0.0.1:8480")
    share = budget if budget is not None else _number(environment, "AMMETER_BUDGET", DEFAULT_BUDGET, "0.01")
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        name = "budget" if budget is not None else "AMMETER_BUDGET"
        raise ValueError(f"{name} is {share!r}; use a share of step time above 0 and at most 1, such as 0.01")
    flush = _number(environment, "AMMETER_FLUSH", DEFAULT_FLUSH, "5")
    if not 0 <= flush <= MAX_FLUSH:
        raise ValueError(f"AMMETER_FLUSH is {flush!r}; use seconds from 0, which never waits, to {MAX_FLUSH:.0f}")
    return Settings(
        url=said_url.rstrip("/") if said_url else None,
        token=environment.get("AMMETER_TOKEN") or None,
        dir=_folder(Path(dir or environment.get("AMMETER_DIR") or DEFAULT_DIR)),
        budget=share,
        flush=flush,
    )


def disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMMETER_DISABLE turns everything off, wrong settings included."""
    return environment.get("AMMETER_DISABLE", "").strip().lower() not in _NO


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All of the environment: what is a secret there is cut from what a program says."""
    return dict(environment)


def proxies(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables that name a proxy for HTTP."""
    return [name for name in environment if name.upper() in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")]


_NO = ("", "0", "false", "no", "off")


def _folder(said: Path) -> Path:
    try:
        return said.expanduser().absolute()
    except RuntimeError:
        raise FileNotFoundError(f"{said} cannot be found: this user has no home folder; set AMMETER_DIR") from None


def _object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Names with values, in JSON."""
    said = environment.get(name, "")
    try:
        found = json.loads(said or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f'{name} is {said[:80]!r}; use an object in JSON, such as {{"team": "vision"}}')
    return found


def _number(environment: Mapping[str, str], name: str, default: float, example: str) -> float:
    said = environment.get(name, "")
    if not said:
        return default
    try:
        return float(said)
    except ValueError:
        raise ValueError(f"{name} is {said!r}; use a number such as {example}.") from None
