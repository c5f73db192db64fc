"""What the runs of a project have cost, and what one that ended well has cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ammeter_server.fleet.project_runs import OUTCOMES, UNSUCCESSFUL, RunFacts


@dataclass(frozen=True)
class CostPart:
    """Runs of one outcome or one device. dollars: of those with a price."""

    name: str
    runs: int
    hours: float
    dollars: float


@dataclass(frozen=True)
class ProjectCost:
    """The cost of a project's runs that ended in a period.

    Attributes:
        runs: Ended runs.
        running: Runs that go on; their cost is not included.
        dollars: Of all ended runs with a price; null if none has one.
        unpriced_runs: Ended runs without a price.
        unsuccessful_dollars: Of runs that diverged, failed or were lost.
        replaced_steps: Steps that a later attempt repeated.
        replaced_dollars: Their part of the cost.
        dollars_per_success: All dollars, divided by the runs that ended well; null without one, and if a run has no
            price.
    """

    runs: int
    running: int
    successful: int
    hours: float
    dollars: float | None
    unpriced_runs: int
    unsuccessful_dollars: float | None
    replaced_steps: int
    replaced_dollars: float | None
    dollars_per_success: float | None
    outcomes: list[CostPart]
    devices: list[CostPart]


def project_cost(facts: Sequence[RunFacts]) -> ProjectCost:
    """Adds up the costs of the ended runs."""
    ended = [run for run in facts if run.outcome != "running"]
    successful = sum(run.outcome == "ended" for run in ended)
    unpriced = sum(run.dollars is None for run in ended)
    dollars = _dollars(ended)
    whole = dollars is not None and not unpriced and successful
    return ProjectCost(
        runs=len(ended),
        running=len(facts) - len(ended),
        successful=successful,
        hours=sum(run.hours for run in ended),
        dollars=dollars,
        unpriced_runs=unpriced,
        unsuccessful_dollars=_dollars([run for run in ended if run.outcome in UNSUCCESSFUL], none=dollars is None),
        replaced_steps=sum(run.replaced_steps for run in ended),
        replaced_dollars=None if dollars is None else sum(run.replaced_dollars or 0.0 for run in ended),
        dollars_per_success=dollars / successful if whole and dollars is not None else None,
        outcomes=_parts(((run.outcome, run) for run in ended), OUTCOMES),
        devices=_parts(
            ((run.device or "unknown", run) for run in ended), sorted({run.device or "unknown" for run in ended})
        ),
    )


def _dollars(runs: Iterable[RunFacts], *, none: bool | None = None) -> float | None:
    """Adds up known costs. none: whether the sum is unknown; by default, if no run has a cost."""
    known = [run.dollars for run in runs if run.dollars is not None]
    unknown = not known if none is None else none
    return None if unknown else sum(known)


def _parts(named: Iterable[tuple[str, RunFacts]], names: Sequence[str]) -> list[CostPart]:
    by_name: dict[str, list[RunFacts]] = {}
    for name, run in named:
        by_name.setdefault(name, []).append(run)
    return [
        CostPart(name, len(runs), sum(run.hours for run in runs), sum(run.dollars or 0.0 for run in runs))
        for name in names
        if (runs := by_name.get(name))
    ]
