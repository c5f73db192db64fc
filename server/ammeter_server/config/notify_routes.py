"""Notification routes: an Apprise URL with the projects and severities that it receives."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

SEVERITIES = ("page", "ticket")
EXAMPLE = "such as: slack://A/B/C severity=page project=speech,vision-*"


@dataclass(frozen=True)
class Route:
    """One route.

    Attributes:
        projects: Names with the wildcards * and ?; empty for all.
        severities: Empty for both.
    """

    url: str
    projects: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()


def read(path: Path) -> tuple[Route, ...]:
    """Reads a file with one route per line; lines that begin with # are comments.

    Raises:
        ValueError: A line is invalid. The message contains its number and never its URL.
    """
    lines = [(number, _words(number, line)) for number, line in enumerate(path.read_text().splitlines(), 1)]
    return tuple(_route(number, words) for number, words in lines if words)


def _words(number: int, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=line.lstrip().startswith("#"))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}; enclose a URL with quotes in the other kind of quotes") from error


def _route(number: int, words: list[str]) -> Route:
    url, *filters = words
    if "://" not in url:
        raise ValueError(f"line {number} does not begin with a URL; write one, {EXAMPLE}")
    values: dict[str, tuple[str, ...]] = {}
    for condition in filters:
        name, equals, text = condition.partition("=")
        if name not in ("project", "severity") or not equals or name in values:
            raise ValueError(
                f"line {number} contains {condition[:80]!r}; use severity=... and project=..., once each, {EXAMPLE}"
            )
        values[name] = tuple(value for value in text.split(",") if value)
    wrong = [value for value in values.get("severity", ()) if value not in SEVERITIES]
    if wrong:
        raise ValueError(f"line {number} contains severity={wrong[0][:80]!r}; use page or ticket, or omit it")
    return Route(url, values.get("project", ()), values.get("severity", ()))
