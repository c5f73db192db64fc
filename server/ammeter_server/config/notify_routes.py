"""Notification routes: an Apprise URL with a filter of the incidents that it receives."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

SEVERITIES = ("page", "ticket")
CLASSES = ("ml", "platform")
"""Who handles a verdict, see incidents/verdict_classes.py."""

FILTERS = {
    "project": "projects",
    "severity": "severities",
    "owner": "owners",
    "verdict": "verdicts",
    "class": "classes",
}
"""The name of a filter in the file -> its field."""

OTHERWISE = "otherwise"
EXAMPLE = "such as: slack://A/B/C severity=page project=speech,vision-*"


@dataclass(frozen=True)
class Subject:
    """What a notification is about. owner: empty for a run without the tag."""

    project: str
    severity: str
    owner: str = ""
    verdict: str = ""
    verdict_class: str = ""


@dataclass(frozen=True)
class Filter:
    """The incidents that a channel receives. An empty field does not limit them.

    Attributes:
        projects, owners, verdicts: Names with the wildcards * and ?.
        otherwise: The channel receives incidents of this filter only if no other route with a filter wants them.
    """

    projects: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    otherwise: bool = False

    def matches(self, subject: Subject) -> bool:
        """Whether the subject is within every field."""
        return (
            (not self.severities or subject.severity in self.severities)
            and (not self.classes or subject.verdict_class in self.classes)
            and _is_like(subject.project, self.projects)
            and _is_like(subject.owner, self.owners)
            and _is_like(subject.verdict, self.verdicts)
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The filter in words that differ if two filters do."""
        later = {"owner": self.owners, "verdict": self.verdicts, "class": self.classes}
        named = [f"{name}={value}" for name, values in later.items() for value in values]
        return (*self.projects, *self.severities, *named, *([OTHERWISE] if self.otherwise else ()))


EVERYTHING = Filter()


@dataclass(frozen=True)
class Route:
    """One route."""

    url: str
    filter: Filter = EVERYTHING


def wanting(filters: Sequence[Filter], subject: Subject) -> list[bool]:
    """Returns for each filter whether its channel receives the subject."""
    matching = [filter_.matches(subject) for filter_ in filters]
    is_mapped = any(
        matches and filter_ != EVERYTHING and not filter_.otherwise
        for filter_, matches in zip(filters, matching, strict=True)
    )
    return [
        matches and not (filter_.otherwise and is_mapped) for filter_, matches in zip(filters, matching, strict=True)
    ]


def read(path: Path) -> tuple[Route, ...]:
    """Reads a file with one route per line; lines that begin with # are comments.

    Raises:
        ValueError: A line is invalid. The message contains its number and never its URL.
    """
    lines = [(number, _words(number, line)) for number, line in enumerate(path.read_text().splitlines(), 1)]
    return tuple(_route(number, words) for number, words in lines if words)


def _is_like(name: str, patterns: Iterable[str]) -> bool:
    patterns = tuple(patterns)
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _words(number: int, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=line.lstrip().startswith("#"))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}; enclose a URL with quotes in the other kind of quotes") from error


def _route(number: int, words: list[str]) -> Route:
    url, *conditions = words
    if "://" not in url:
        raise ValueError(f"line {number} does not begin with a URL; write one, {EXAMPLE}")
    values: dict[str, tuple[str, ...]] = {}
    otherwise = False
    for condition in conditions:
        name, equals, text = condition.partition("=")
        if condition == OTHERWISE and not otherwise:
            otherwise = True
        elif name not in FILTERS or not equals or name in values:
            names = ", ".join(f"{known}=..." for known in ("severity", *(key for key in FILTERS if key != "severity")))
            raise ValueError(
                f"line {number} contains {condition[:80]!r}; use {names} and {OTHERWISE}, once each, {EXAMPLE}"
            )
        else:
            values[name] = tuple(value for value in text.split(",") if value)
    for name, known in (("severity", SEVERITIES), ("class", CLASSES)):
        for value in values.get(name, ()):
            if value not in known:
                raise ValueError(f"line {number} contains {name}={value[:80]!r}; use {' or '.join(known)}, or omit it")
    return Route(url, Filter(**{FILTERS[name]: value for name, value in values.items()}, otherwise=otherwise))
