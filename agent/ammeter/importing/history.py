"""A training history of another tool, before it becomes a run of Ammeter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class ImportFailed(ValueError):
    """The history cannot be read, or has nothing to import."""


@dataclass
class History:
    """What a tool has recorded of one training.

    Attributes:
        source: Where it is, as an address that a person recognizes.
        version: The library that read it, with its version; empty for a plain file.
        name, project, config, tags: What the tool knows of the run.
        values: Step -> metric -> value. Of several values of a step the last one counts.
        times: Step -> time of its last value in ns; empty if the tool has none.
    """

    source: str
    version: str = ""
    name: str = ""
    project: str = "default"
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)

    def add(self, step: int, values: Mapping[str, float], time: int | None = None) -> None:
        """Adds values of a step, in the order in which the tool recorded them."""
        if step < 0:
            raise ImportFailed(f"{self.source} has the step {step}; steps count from 0")
        self.values.setdefault(step, {}).update(values)
        if time is not None:
            self.times[step] = max(time, self.times.get(step, 0))

    @property
    def metrics(self) -> list[str]:
        """The names of all metrics, in the order of their first step."""
        return list(dict.fromkeys(name for step in sorted(self.values) for name in self.values[step]))


def only(found: Iterable[Any], of: str, source: str, remedy: str) -> Any:
    """Returns the only element.

    Raises:
        ImportFailed: there is none, or there are several, which it lists.
    """
    several = list(found)
    if not several:
        raise ImportFailed(f"there is no {of} in {source!r}")
    if len(several) > 1:
        listed = ", ".join(map(str, several[:MAX_LISTED])) + (", ..." if len(several) > MAX_LISTED else "")
        raise ImportFailed(f"{source!r} has {len(several)} {of}s; {remedy}: {listed}")
    return several[0]


MAX_LISTED = 10
"""Runs that an error lists, enough to recognize the wanted one."""
