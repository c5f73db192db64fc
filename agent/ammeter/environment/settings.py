"""The agent's settings: arguments of watch(), else AMMETER_* variables, else defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

DEFAULT_DIR = "~/.ammeter"
DEFAULT_BUDGET = 0.01
DEFAULT_FLUSH_SECONDS = 5.0
MAX_FLUSH_SECONDS = 3600.0


class Settings(msgspec.Struct, frozen=True):
    """The settings of one watch() call.

    Attributes:
        url: the collector, None for none.
        token: the token sent to the collector, None for none.
        dir: the folder of the journals.
        budget: share of step time.
        flush: maximum seconds that close() waits for the collector's acknowledgement, 0 for no wait.
    """

    url: str | None
    token: str | None
    dir: Path
    budget: float
    flush: float


class Launched(msgspec.Struct, frozen=True):
    """Options that `ammeter run` passes to the processes it starts.

    Attributes:
        name, project: '' if not given.
        profile: whether kernels are to be named.
        tags, config: those of the run.
    """

    name: str
    project: str
    preset: str
    profile: bool
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    config: Mapping[str, Any] = msgspec.field(default_factory=dict)


def silenced(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the verdicts in AMMETER_SILENCE, separated by commas."""
    return environment.get("AMMETER_SILENCE", "")


def launched(environment: Mapping[str, str] = os.environ) -> Launched:
    """Returns the options of `ammeter run`, in the process that trains."""
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
    """Returns the settings from arguments, environment and defaults.

    Raises:
        ValueError: a value cannot be used; the message names it and the remedy.
        OSError: the user has no home folder.
    """
    address = url or environment.get("AMMETER_URL") or None
    if address and not address.startswith(("http://", "https://")):
        name = "url" if url else "AMMETER_URL"
        from ammeter.redaction import text  # imported late: if Ammeter is disabled, nothing else of it is loaded

        raise ValueError(f"{name} is {text(address, 200)!r}; use http:// or https://, such as http://127.0.0.1:8480")
    share = budget if budget is not None else _number(environment, "AMMETER_BUDGET", DEFAULT_BUDGET, "0.01")
    if not isinstance(share, (int, float)) or not 0 < share <= 1:
        name = "budget" if budget is not None else "AMMETER_BUDGET"
        raise ValueError(f"{name} is {share!r}; use a share of step time above 0 and at most 1, such as 0.01")
    flush = _number(environment, "AMMETER_FLUSH", DEFAULT_FLUSH_SECONDS, "5")
    if not 0 <= flush <= MAX_FLUSH_SECONDS:
        limit = f"{MAX_FLUSH_SECONDS:.0f}"
        raise ValueError(f"AMMETER_FLUSH is {flush!r}; use seconds from 0, which never waits, to {limit}")
    return Settings(
        url=address.rstrip("/") if address else None,
        token=environment.get("AMMETER_TOKEN") or _token_in_file(environment.get("AMMETER_TOKEN_FILE", "")),
        dir=_folder(Path(dir or environment.get("AMMETER_DIR") or DEFAULT_DIR)),
        budget=share,
        flush=flush,
    )


def _token_in_file(path: str) -> str | None:
    """Returns the content of a file that schedulers mount or that only its user can read, None without one."""
    if not path:
        return None
    try:
        token = Path(path).expanduser().read_text().strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(
            f"AMMETER_TOKEN_FILE is {path!r}, which cannot be read: {reason}; use a readable file"
        ) from None
    if not token or token.split() != [token]:
        raise ValueError(
            f"AMMETER_TOKEN_FILE is {path!r}, which is not one token; write the token and nothing else into it"
        )
    return token


def disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether AMMETER_DISABLE turns everything off, including the check of settings."""
    return environment.get("AMMETER_DISABLE", "").strip().lower() not in _NO


def asked_for_in_lightning(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether each Trainer and Fabric of Lightning gets a callback of Ammeter."""
    return environment.get("AMMETER_LIGHTNING", "").strip().lower() not in _NO


def reproduces(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether operators that made a NaN or an Inf may be written into the run's folder with their operands."""
    return environment.get("AMMETER_REPRODUCERS", "1").strip().lower() not in _NO[1:]


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the whole environment, whose secrets are removed from the program's texts."""
    return dict(environment)


def proxies(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the names of variables that set an HTTP proxy."""
    return [name for name in environment if name.upper() in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")]


_NO = ("", "0", "false", "no", "off")


def _folder(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise FileNotFoundError(f"{path} cannot be found: this user has no home folder; set AMMETER_DIR") from None


def _object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Parses a variable with a JSON object."""
    text = environment.get(name, "")
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f'{name} is {text[:80]!r}; use a JSON object, such as {{"team": "vision"}}')
    return parsed


def _number(environment: Mapping[str, str], name: str, default: float, example: str) -> float:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; use a number such as {example}.") from None
