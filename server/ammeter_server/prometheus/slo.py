"""Objectives of a fleet, as rules for Prometheus: the shares of runs that end well, of steps that are applied, of runs
that end with finite numbers, of validations that hold, and of runs that keep to their expected time.

How fast the share that may fail is used up, over a long window and a short one: the long one says that it matters, the
short one that it goes on, so that the alert ends soon after the trouble. From the Google SRE workbook, "Alerting on
SLOs", 6: multiwindow, multi-burn-rate alerts; its windows of 6 h and 30 min for a page, 3 days and 6 h for a ticket.
"""

from __future__ import annotations

from dataclasses import dataclass

from ammeter_server.config.settings import Settings
from ammeter_server.prometheus.rule_types import Alert, Recording

PAGE_BURN = 2
"""A page where failures come more than twice as fast as the objective allows. The workbook pages at 6 over six hours,
for services with thousands of requests a second; where there are a hundred runs in a month, the least numbers below
do what its higher factor is for. An objective of one half or less could not burn as fast: settings.py refuses it."""

LEAST_RUNS = 5
"""Runs that fail in the long window before anybody is told: one broken run has an incident of its own. Of 20 runs that
keep to 95 % five or more fail in one case of 400 (binomial), so five have something in common, or bad luck is rare."""

LEAST_STEPS = 1000
"""Skipped steps in the long window before anybody is told. A scaler that starts at 65536 skips at most 16 steps on its
way down to 1, and then one in 2000: a thousand are sixty such starts within hours, or a run that applies nothing."""


@dataclass(frozen=True)
class Objective:
    """share: how much of the subject has to be good, above 0 and below 1. good: the outcome that is. bad: what the
    rules call the others. least: bad ones in the long window before anybody is told. verb, look: for a person.

    of: the outcomes that are looked at, all where it is empty. called: where another objective has the same subject.
    pages: whether it wakes somebody.
    """

    subject: str
    share: float
    good: str
    bad: str
    least: int
    verb: str
    look: str
    of: tuple[str, ...] = ()
    called: str = ""
    pages: bool = True

    @property
    def name(self) -> str:
        return self.called or self.subject

    @property
    def allowed(self) -> float:
        """The share that may be bad."""
        return round(1 - self.share, 12)

    @property
    def recorded(self) -> str:
        """What the names of its recordings begin with."""
        return f"project:ammeter_fleet_{self.subject}_{self.bad}"


def objectives(
    runs: float = Settings.objective_runs,
    steps: float = Settings.objective_steps,
    finite: float = Settings.objective_finite,
    validation: float = Settings.objective_validation,
    time: float = Settings.objective_time,
) -> tuple[Objective, ...]:
    """All of them, by the shares that the collector's settings ask for."""
    look = "Look which runs they are, on the page or at /api/v1/runs, and what their incidents have in common"
    return (
        Objective("runs", runs, "ended", "failed", LEAST_RUNS, "failed or were lost", look),
        Objective("steps", steps, "applied", "skipped", LEAST_STEPS, "were skipped", look),
        Objective(
            *("runs", finite, "ended", "diverged", LEAST_RUNS, "ended with numbers that are not finite", look),
            of=("ended", "diverged"),
            called="divergence",
        ),
        Objective(
            *("validations", validation, "held", "drifted", LEAST_RUNS, "were worse than agreed on", look),
            called="validation",
            pages=False,
        ),
        Objective(
            *("times", time, "expected", "late", LEAST_RUNS, "were longer than expected", look),
            called="time",
            pages=False,
        ),
    )


def recordings(objective: Objective) -> list[Recording]:
    """The share of the bad ones over each window, and over the long ones how many they are; all by project.

    From the fleet's counters alone: those of a run come and go with it, and what it had counted when it was first
    scraped is no increase.
    """
    found = []
    for window in ("30m", "6h", "3d"):
        whole = f'{{outcome=~"{"|".join(objective.of)}"}}' if objective.of else ""
        others = f'outcome!="{objective.good}"'
        bad = _increase(objective, window, f"{whole[:-1]},{others}}}" if whole else f"{{{others}}}")
        share = f"{bad} / {_increase(objective, window, whole)}"
        found.append(Recording(f"{objective.recorded}:ratio_increase{window}", share))
        if window != "30m":
            found.append(Recording(f"{objective.recorded}:increase{window}", bad))
    return found


def alerts(objective: Objective) -> list[Alert]:
    """A page for what burns now, where it is worth one, a ticket for what was missed over days."""
    found = [
        Alert(
            id=f"{objective.subject}-{objective.bad}",
            expr=_burning(objective, PAGE_BURN, "6h", "30m"),
            severity="page",
            summary=_summary(objective, "six hours"),
            description=f"{_room(objective)}; more than {PAGE_BURN} times as many {objective.verb}, in the last "
            f"thirty minutes too. {objective.look}.",
            labels={"objective": objective.name},
        ),
        Alert(
            id=f"{objective.name}-objective-missed",
            expr=_burning(objective, 1, "3d", "6h"),
            severity="ticket",
            summary=_summary(objective, "three days"),
            description=f"{_room(objective)}; more {objective.verb}, in the last six hours too. Nobody has "
            f"to get up for it. {objective.look}.",
            labels={"objective": objective.name},
        ),
    ]
    return found if objective.pages else found[1:]


def _increase(objective: Objective, window: str, of: str = "") -> str:
    """max by (project, outcome): two scrapes of one fleet count once."""
    counter = f"ammeter_fleet_{objective.subject}_total{of}"
    return f"sum by (project) (max by (project, outcome) (increase({counter}[{window}])))"


def _burning(objective: Objective, burn: int, long: str, short: str) -> str:
    ratio, limit = f"{objective.recorded}:ratio_increase", f"{round(burn * objective.allowed, 12):g}"
    many = f"{objective.recorded}:increase{long} >= {objective.least}"
    return f"{ratio}{long} > {limit} and {ratio}{short} > {limit} and {many}"


def _summary(objective: Objective, stretch: str) -> str:
    share = "{{ $value | humanizePercentage }}"
    return f"{share} of the {objective.subject} of project {{{{ $labels.project }}}} {objective.verb} in {stretch}"


def _room(objective: Objective) -> str:
    return (
        f"The collector's objective leaves room for {round(100 * objective.allowed, 10):g} % of the {objective.subject}"
    )
