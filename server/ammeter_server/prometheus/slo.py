"""Fleet objectives as Prometheus rules.

The objectives are the shares of runs that end normally, of steps that are applied, of runs that end with finite
numbers, of validations that hold, and of runs that finish within their expected time.

The rules compare the burn rate of the error budget over a long and a short window. The long window shows that the loss
is significant. The short one shows that it continues, so that the alert ends soon after it. Source: Google SRE
workbook, "Alerting on SLOs", section 6 (multiwindow, multi-burn-rate alerts); its windows of 6 h and 30 min for a page,
3 days and 6 h for a ticket.
"""

from __future__ import annotations

from dataclasses import dataclass

from ammeter_server.config.settings import Settings
from ammeter_server.prometheus.rule_types import Alert, Recording

PAGE_BURN = 2
"""Pages if failures arrive more than twice as fast as the objective allows. The workbook pages at 6 over six hours, for
services with thousands of requests a second. With a hundred runs in a month, the minimum counts below replace its
higher factor. An objective of one half or less cannot burn as fast; settings.py refuses it."""

MIN_FAILED_RUNS = 5
"""Minimum number of failed runs in the long window before an alert; a single broken run has its own incident. Of 20
runs that meet 95 %, five or more fail in one case of 400 (binomial). Five failures therefore have a common cause, or
bad luck of a rare kind."""

MIN_SKIPPED_STEPS = 1000
"""Minimum number of skipped steps in the long window before an alert. A scaler that starts at 65536 skips at most 16
steps on its way down to 1, and then one in 2000. A thousand are sixty such starts within hours, or a run that applies
nothing."""


@dataclass(frozen=True)
class Objective:
    """One objective of the fleet.

    Attributes:
        share: The share of the subject that has to be good, above 0 and below 1.
        good: The good outcome.
        bad: The name of all other outcomes in the rules.
        min_bad: Minimum bad count in the long window before an alert.
        verb: Describes the bad outcome in alert texts.
        remedy: Instruction for a person in alert texts.
        of: The counted outcomes; empty for all.
        called: Name, if another objective has the same subject.
        pages: Whether it has a page in addition to the ticket.
    """

    subject: str
    share: float
    good: str
    bad: str
    min_bad: int
    verb: str
    remedy: str
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
        """Prefix of the names of its recordings."""
        return f"project:ammeter_fleet_{self.subject}_{self.bad}"


def objectives(
    runs: float = Settings.objective_runs,
    steps: float = Settings.objective_steps,
    finite: float = Settings.objective_finite,
    validation: float = Settings.objective_validation,
    time: float = Settings.objective_time,
) -> tuple[Objective, ...]:
    """All objectives, with the shares of the collector's settings."""
    remedy = "First step: find these runs on the web page or at /api/v1/runs, and compare their incidents"
    return (
        Objective("runs", runs, "ended", "failed", MIN_FAILED_RUNS, "failed or were lost", remedy),
        Objective("steps", steps, "applied", "skipped", MIN_SKIPPED_STEPS, "were skipped", remedy),
        Objective(
            *("runs", finite, "ended", "diverged", MIN_FAILED_RUNS, "ended with non-finite numbers", remedy),
            of=("ended", "diverged"),
            called="divergence",
        ),
        Objective(
            *(
                "validations",
                validation,
                "held",
                "drifted",
                MIN_FAILED_RUNS,
                "were worse than the limit allows",
                remedy,
            ),
            called="validation",
            pages=False,
        ),
        Objective(
            *("times", time, "expected", "late", MIN_FAILED_RUNS, "were longer than expected", remedy),
            called="time",
            pages=False,
        ),
    )


def recordings(objective: Objective) -> list[Recording]:
    """Recording rules of one objective, by project: the bad share per window, and the bad count per long window.

    They use only the fleet's counters. Counters of a run appear and disappear with it, and the count at the first
    scrape would not be an increase.
    """
    rules = []
    for window in ("30m", "6h", "3d"):
        counted = f'{{outcome=~"{"|".join(objective.of)}"}}' if objective.of else ""
        others = f'outcome!="{objective.good}"'
        bad = _increase(objective, window, f"{counted[:-1]},{others}}}" if counted else f"{{{others}}}")
        share = f"{bad} / {_increase(objective, window, counted)}"
        rules.append(Recording(f"{objective.recorded}:ratio_increase{window}", share))
        if window != "30m":
            rules.append(Recording(f"{objective.recorded}:increase{window}", bad))
    return rules


def alerts(objective: Objective) -> list[Alert]:
    """A ticket for a miss over days; before it a page, if the objective pages."""
    rules = [
        Alert(
            id=f"{objective.subject}-{objective.bad}",
            expr=_burning(objective, PAGE_BURN, "6h", "30m"),
            severity="page",
            summary=_summary(objective, "six hours"),
            description=f"{_room(objective)}; more than {PAGE_BURN} times as many {objective.verb}, also in the last "
            f"thirty minutes. {objective.remedy}.",
            labels={"objective": objective.name},
        ),
        Alert(
            id=f"{objective.name}-objective-missed",
            expr=_burning(objective, 1, "3d", "6h"),
            severity="ticket",
            summary=_summary(objective, "three days"),
            description=f"{_room(objective)}; more {objective.verb}, also in the last six hours. It can wait for the "
            f"morning. {objective.remedy}.",
            labels={"objective": objective.name},
        ),
    ]
    return rules if objective.pages else rules[1:]


def _increase(objective: Objective, window: str, of: str = "") -> str:
    """The increase by project. `max by (project, outcome)` counts two scrapes of one fleet once."""
    counter = f"ammeter_fleet_{objective.subject}_total{of}"
    return f"sum by (project) (max by (project, outcome) (increase({counter}[{window}])))"


def _burning(objective: Objective, burn: int, long: str, short: str) -> str:
    ratio, limit = f"{objective.recorded}:ratio_increase", f"{round(burn * objective.allowed, 12):g}"
    many = f"{objective.recorded}:increase{long} >= {objective.min_bad}"
    return f"{ratio}{long} > {limit} and {ratio}{short} > {limit} and {many}"


def _summary(objective: Objective, stretch: str) -> str:
    share = "{{ $value | humanizePercentage }}"
    return f"{share} of the {objective.subject} of project {{{{ $labels.project }}}} {objective.verb} in {stretch}"


def _room(objective: Objective) -> str:
    return f"The collector's objective allows {round(100 * objective.allowed, 10):g} % of the {objective.subject}"
