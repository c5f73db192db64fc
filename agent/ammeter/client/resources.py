"""What the collector's API returns, as docs/api.md describes it.

A member that an older collector does not send has its default; members of a newer one are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from ammeter.wire.columns import Floats, Ints
from ammeter.wire.decodable import decodable

T = TypeVar("T")

NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""How the API writes numbers that JSON does not have."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a run; its steps are those of the run.

    Attributes:
        replaced_from: the step from which later attempts replace it; None if none does.
    """

    number: int
    stream: str
    step_offset: int
    first_step: int
    last_step: int
    replaced_from: int | None = None


@decodable
class Run(msgspec.Struct, kw_only=True):
    """A run. `id` is its address; `external_id` the id that its processes send.

    Attributes:
        state: running, ended or lost.
        worst: the severity of its worst open incident, page or ticket; None without one.
        latest: the last value of each column.
        not_judged: verdicts that too few readings leave open.
    """

    id: str
    external_id: str = ""
    name: str = ""
    project: str = ""
    state: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    last_step: int | None = None
    last_step_time: datetime | None = None
    world_size: int = 1
    ranks_reporting: int = 0
    precision: str | None = None
    torch_version: str | None = None
    device_model: str | None = None
    command: str | None = None
    config: dict[str, Any] = {}
    tags: dict[str, Any] = {}
    latest: dict[str, Any] = {}
    counters: dict[str, Any] = {}
    lost: dict[str, dict[str, int]] = {}
    faults: dict[str, Any] = {}
    environment: dict[str, str] = {}
    devices: list[dict[str, Any]] = []
    open_incidents: int = 0
    closed_incidents: int = 0
    worst: str | None = None
    cost_dollars: float | None = None
    cost_per_epoch_dollars: float | None = None
    seconds_per_epoch: float | None = None
    continues: str | None = None
    continued_by: str | None = None
    lives: list[Attempt] = []
    not_judged: list[dict[str, Any]] = []

    def __post_init__(self) -> None:
        self.latest = numbers(self.latest)


@decodable
class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A finding and what became of it. `consequences` are the findings that it explains.

    Attributes:
        severity: page or ticket.
        state: open, acknowledged or closed.
        step_offset: to be added to its steps for steps of the run.
        runbook: address of the page that says what to do.
    """

    id: str
    run: str
    verdict: str
    run_name: str = ""
    project: str = ""
    severity: str = ""
    title: str = ""
    state: str = ""
    opened: datetime | None = None
    acknowledged: datetime | None = None
    silenced: datetime | None = None
    closed: datetime | None = None
    closed_reason: str | None = None
    first_step: int = 0
    opened_step: int = 0
    last_step: int = 0
    rank: int = 0
    tensor: str | None = None
    module: str | None = None
    caller: str | None = None
    cause: str = ""
    fix: str = ""
    evidence: dict[str, Any] = {}
    consequences: list[dict[str, Any]] = []
    runbook: str = ""
    step_offset: int = 0


@decodable
class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a rank; docs/events.md describes the data of each name.

    Attributes:
        step: as counted by the process; with `step_offset` added it is a step of the run.
    """

    id: str
    run: str
    stream: str
    rank: int
    name: str
    step: int
    time: datetime | None = None
    data: dict[str, Any] = {}
    step_offset: int = 0


@decodable
class TensorStat(msgspec.Struct, kw_only=True):
    """The latest reading of one statistic of one tensor. `numel`: the number of its elements."""

    name: str
    stat: str
    value: float | str
    step: int
    shape: list[int] = []
    dtype: str = ""
    numel: int = 0
    rank: int = 0
    stream: str = ""

    def __post_init__(self) -> None:
        self.value = number(self.value)


class ComparedRun(msgspec.Struct, frozen=True):
    """One side of a comparison."""

    id: str
    name: str = ""
    precision: str | None = None


@dataclass(frozen=True)
class ComparedCurve:
    """One column of both runs at their common steps."""

    name: str
    steps: Ints
    run: Floats
    baseline: Floats


@dataclass(frozen=True)
class Comparison:
    """A run compared with a baseline, as the report compares them.

    Attributes:
        numbers: results; None if unknown. `not_compared` in it gives the reasons.
        differences: settings that differ, and what each forbids to compare.
        findings: of the comparison, causes first.
    """

    run: ComparedRun
    baseline: ComparedRun
    numbers: dict[str, Any]
    differences: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    curves: list[ComparedCurve]


@decodable
class PinnedBaseline(msgspec.Struct):
    """A run that is pinned as a baseline.

    Attributes:
        name: of the runs that it is for; None for all runs of the project.
        run_name: None if the run no longer exists.
    """

    project: str
    name: str | None
    run: str
    run_name: str | None
    pinned: str | None
    pinned_by: str


@decodable
class PinnedBaselines(msgspec.Struct):
    """The answer of the API about pins."""

    items: list[PinnedBaseline]


class Page(msgspec.Struct, Generic[T]):
    """A page of a list."""

    items: list[T]
    next_page_token: str | None = None


for _kind in (Run, Incident, Event, TensorStat):
    msgspec.json.Decoder(Page[_kind])  # type: ignore[valid-type]


class _SentCurve(msgspec.Struct):
    name: str
    steps: list[int]
    run: list[float | str]
    baseline: list[float | str]

    def as_arrays(self) -> ComparedCurve:
        return ComparedCurve(self.name, np.array(self.steps, np.int64), _array(self.run), _array(self.baseline))


@decodable
class SentComparison(msgspec.Struct):
    """A comparison as the API sends it."""

    run: ComparedRun
    baseline: ComparedRun
    numbers: dict[str, Any]
    differences: list[dict[str, Any]]
    findings: list[dict[str, Any]]
    series: list[_SentCurve]

    def with_arrays(self) -> Comparison:
        curves = [curve.as_arrays() for curve in self.series]
        return Comparison(self.run, self.baseline, numbers(self.numbers), self.differences, self.findings, curves)


def numbers(content: dict[str, Any]) -> dict[str, Any]:
    """Replaces the names of NaN and Inf by the numbers."""
    return {name: number(value) for name, value in content.items()}


def number(value: Any) -> Any:
    """Returns the number that "NaN", "Infinity" or "-Infinity" names; other values unchanged."""
    return NONFINITE.get(value, value) if isinstance(value, str) else value


def _array(values: list[float | str]) -> Floats:
    return np.array([number(value) for value in values], np.float32)
