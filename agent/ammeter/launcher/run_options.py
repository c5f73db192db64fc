"""Options of `ammeter run` about the run itself: tags, and a file with its config."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ammeter.wire.metric_directions import BETTER, check_direction

MAX_CONFIG_BYTES = 96 * 1024
"""Size limit of a config in the environment; the kernel accepts 128 KiB in one variable."""


def parse_tags(options: Sequence[str]) -> dict[str, str]:
    """Parses several KEY=VALUE. Raises ValueError for invalid ones."""
    tags = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--tag {option!r} has no key or value; use KEY=VALUE, such as --tag baseline=fp32-monday")
        if key.startswith(BETTER):
            check_direction(key[len(BETTER) :], value)
        tags[key.strip()] = value
    return tags


def read_config(file: str) -> dict[str, Any]:
    """Reads the settings in a JSON, TOML or YAML file; YAML needs PyYAML.

    Raises ValueError, with the remedy.
    """
    path = Path(file)
    try:
        body = path.read_bytes()
    except OSError as error:
        raise ValueError(f"--config {file!r} cannot be read: {error.strerror or error}") from error
    config = _parse(file, path.suffix, body)
    if not isinstance(config, Mapping):
        kind = type(config).__name__
        raise ValueError(f"--config {file!r} contains a {kind}; use a mapping of names to values")
    return {str(key): value for key, value in config.items()}


def _parse(file: str, suffix: str, body: bytes) -> Any:
    if suffix.lower() not in READERS:
        raise ValueError(f"--config {file!r} ends in {suffix or 'nothing'!r}; use .json, .toml, .yaml or .yml")
    try:
        return READERS[suffix.lower()](body)
    except NoYamlError as error:
        raise ValueError(f"--config {file!r} is YAML: {error}") from error
    except Exception as error:  # each reader has its own errors
        raise ValueError(f"--config {file!r} cannot be parsed: {' '.join(str(error).split())[:200]}") from error


def encode_config(config: Mapping[str, Any]) -> str:
    """Encodes the config for the processes of the command.

    Raises ValueError if it is too large.
    """
    text = json.dumps(config, default=str)
    size = len(text.encode())
    if size > MAX_CONFIG_BYTES:
        raise ValueError(f"the config has {size} bytes; use at most {MAX_CONFIG_BYTES}")
    return text


class NoYamlError(ImportError):
    """PyYAML is not installed."""


def _json(body: bytes) -> Any:
    return json.loads(body)


def _toml(body: bytes) -> Any:
    return tomllib.loads(body.decode())


def _yaml(body: bytes) -> Any:
    if find_spec("yaml") is None:
        raise NoYamlError("PyYAML is not installed; install it, or use JSON or TOML")
    return import_module("yaml").safe_load(body)


READERS: Mapping[str, Callable[[bytes], Any]] = {".json": _json, ".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
"""By suffix of the file."""
