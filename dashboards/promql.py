"""Words of PromQL that several boards say alike."""

from __future__ import annotations

CHOSEN = 'run=~"$run"'
PROJECTS = 'project=~"$project"'

INFO = f"ammeter_run_info{{{PROJECTS}}}"

RUN = "{{name}} {{id}}"
"""Legend of a line of one run, where named() says which it is: several runs may have one name."""

RUNNING = 'ammeter_run_state{state="running"} == 1'

FLEET_JOB, COLLECTOR_JOB = "ammeter", "ammeter-collector"
"""The scrape jobs of /metrics and of /metrics/self, as alerts/prometheus.yaml names them."""


def rate(counter: str, labels: str = "", *, per_minute: bool = False) -> str:
    """How often it counts per second, at each moment."""
    return f"{'60 * ' if per_minute else ''}rate({_of(counter, labels)}[$__rate_interval])"


def increase(counter: str, labels: str = "") -> str:
    """How much it counted in all of the time that the board shows."""
    return f"increase({_of(counter, labels)}[$__range])"


def seen(metric: str, labels: str = "") -> str:
    """What it was last in the time that the board shows: a run that is over is told for five minutes only."""
    return f"last_over_time({_of(metric, labels)}[$__range])"


def of_projects(expression: str) -> str:
    """What of it belongs to runs of the chosen projects: only some metrics say the project."""
    return f"{_together(expression)} and on (run) {INFO}"


def of_projects_seen(expression: str) -> str:
    """The same over all of the time that the board shows."""
    return f"{_together(expression)} and on (run) {seen('ammeter_run_info', PROJECTS)}"


def named(expression: str) -> str:
    """The same of runs of the chosen projects, each with its name and the first eight signs of its id for a legend."""
    return f"{_together(expression)} {_beside(INFO)}"


def named_seen(expression: str) -> str:
    """The same over all of the time that the board shows."""
    return f"{_together(expression)} {_beside(seen('ammeter_run_info', PROJECTS))}"


def open_incidents(labels: str) -> str:
    """1 for each, whichever replica was asked."""
    return f"max by (run, project, verdict, severity) (ammeter_incident_active{{{labels}}}) == 1"


def open_incidents_named(labels: str) -> str:
    """The same with the name of each run. An incident may stay open for longer than its run's name is told."""
    every = f"({open_incidents(labels)})"
    names = f"max by (run, name) ({INFO})"
    return f"{every} * on (run) group_left (name) {names} or on (run, verdict, severity) {every}"


def or_none(expression: str) -> str:
    """0 where nothing is found."""
    return f"{expression} or vector(0)"


def while_up(expression: str) -> str:
    """The same at moments at which its scrape worked, else nothing: a number of before the collector froze, or a 0 that
    stands for nothing found, would say that all is well. What asks for `up` itself is left alone."""
    if "ammeter_" not in expression:
        return expression
    job = COLLECTOR_JOB if "ammeter_collector_" in expression else FLEET_JOB
    return f"({expression}) and on () (max({up(job)}) == 1)"


def up(job: str) -> str:
    """1 for each address of a scrape job that answered the last scrape, 0 for one that did not."""
    return f'up{{job="{job}"}}'


def since_last_scrape(job: str) -> str:
    """Seconds since the last scrape that worked, to a quarter of a minute; of the time that the board shows."""
    return f"time() - max(max_over_time(timestamp({up(job)} == 1)[$__range:15s]))"


def quantile(share: str, histogram: str, labels: str = "", by: str = "run") -> str:
    """What this share of the observations stays below, in each interval."""
    inside = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile({share}, sum by ({inside}) ({rate(f'{histogram}_bucket', labels)}))"


def median_and_p99(histogram: str, labels: str) -> list[tuple[str, str]]:
    """Both of each run."""
    shares = (("0.5", "median"), ("0.99", "p99"))
    return [(named(quantile(share, histogram, labels)), f"{RUN} {word}") for share, word in shares]


def _of(metric: str, labels: str) -> str:
    return f"{metric}{{{labels}}}" if labels else metric


def _together(expression: str) -> str:
    return expression if expression.isidentifier() else f"({expression})"


def _beside(info: str) -> str:
    short = f'label_replace(max by (run, name) ({info}), "id", "$1", "run", "(.{{8}}).*")'
    return f"* on (run) group_left (name, id) {short}"
