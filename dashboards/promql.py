"""PromQL expressions that several boards share."""

from __future__ import annotations

SELECTED_RUN = 'run=~"$run"'
PROJECTS = 'project=~"$project"'

INFO = f"ammeter_run_info{{{PROJECTS}}}"

RUN = "{{name}} {{id}}"
"""Legend for a line of one run.

named() adds the id, because several runs may have one name.
"""

RUNNING = 'ammeter_run_state{state="running"} == 1'

FLEET_JOB, COLLECTOR_JOB = "ammeter", "ammeter-collector"
"""The scrape jobs of /metrics and of /metrics/self, named as in alerts/prometheus.yaml."""


def rate(counter: str, labels: str = "", *, per_minute: bool = False) -> str:
    """Returns the rate of a counter per second at each moment."""
    return f"{'60 * ' if per_minute else ''}rate({_of(counter, labels)}[$__rate_interval])"


def increase(counter: str, labels: str = "") -> str:
    """Returns the increase of a counter over the displayed time range."""
    return f"increase({_of(counter, labels)}[$__range])"


def seen(metric: str, labels: str = "") -> str:
    """Returns the last value in the displayed time range.

    An ended run is exported for five minutes only.
    """
    return f"last_over_time({_of(metric, labels)}[$__range])"


def of_projects(expression: str) -> str:
    """Restricts to runs of the chosen projects, because only some metrics have the project."""
    return f"{_in_parentheses(expression)} and on (run) {INFO}"


def of_projects_seen(expression: str) -> str:
    """Same as of_projects() over the displayed time range."""
    return f"{_in_parentheses(expression)} and on (run) {seen('ammeter_run_info', PROJECTS)}"


def named(expression: str) -> str:
    """Restricts to runs of the chosen projects, with name and short id for a legend.

    The short id is the first eight characters of the run's id.
    """
    return f"{_in_parentheses(expression)} {_with_names(INFO)}"


def named_seen(expression: str) -> str:
    """Same as named() over the displayed time range."""
    return f"{_in_parentheses(expression)} {_with_names(seen('ammeter_run_info', PROJECTS))}"


def open_incidents(labels: str) -> str:
    """Returns 1 for each open incident, whichever replica was scraped."""
    return f"max by (run, project, verdict, severity) (ammeter_incident_active{{{labels}}}) == 1"


def open_incidents_named(labels: str) -> str:
    """Same as open_incidents(), with the name of each run.

    An incident may stay open for longer than the name of its run is exported.
    """
    every = f"({open_incidents(labels)})"
    names = f"max by (run, name) ({INFO})"
    return f"{every} * on (run) group_left (name) {names} or on (run, verdict, severity) {every}"


def or_none(expression: str) -> str:
    """Returns 0 where there is no result."""
    return f"{expression} or vector(0)"


def above_zero(expression: str) -> str:
    """Omits series that are 0, so that one line among those of many runs is found."""
    return f"{expression} > 0"


def while_up(expression: str) -> str:
    """Restricts an expression to times with a successful scrape.

    Otherwise a number from before the collector froze, or a 0 for no result, would suggest that all is well.
    Expressions without `ammeter_` metrics, such as `up`, are unchanged.
    """
    if "ammeter_" not in expression:
        return expression
    job = COLLECTOR_JOB if "ammeter_collector_" in expression else FLEET_JOB
    return f"({expression}) and on () (max({up(job)}) == 1)"


def up(job: str) -> str:
    """Returns 1 for each address of a job that answered the last scrape, else 0."""
    return f'up{{job="{job}"}}'


def since_last_scrape(job: str) -> str:
    """Seconds since the last successful scrape in the displayed time range, to 15 s."""
    return f"time() - max(max_over_time(timestamp({up(job)} == 1)[$__range:15s]))"


def quantile(share: str, histogram: str, labels: str = "", by: str = "run") -> str:
    """Returns the upper limit of this share of the observations, in each interval."""
    inside = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile({share}, sum by ({inside}) ({rate(f'{histogram}_bucket', labels)}))"


def buckets(histogram: str, labels: str = "") -> str:
    """Returns the observations per second up to each limit, for a heatmap."""
    return f"sum by (le) ({rate(f'{histogram}_bucket', labels)})"


def buckets_of_projects(histogram: str, labels: str) -> str:
    """Same as buckets() for the runs of the chosen projects."""
    return f"sum by (le) ({of_projects(rate(f'{histogram}_bucket', labels))})"


def median_and_p99(histogram: str, labels: str) -> list[tuple[str, str]]:
    """Returns the median and the 99th percentile of each run."""
    shares = (("0.5", "median"), ("0.99", "p99"))
    return [(named(quantile(share, histogram, labels)), f"{RUN} {word}") for share, word in shares]


def _of(metric: str, labels: str) -> str:
    return f"{metric}{{{labels}}}" if labels else metric


def _in_parentheses(expression: str) -> str:
    return expression if expression.isidentifier() else f"({expression})"


def _with_names(info: str) -> str:
    short = f'label_replace(max by (run, name) ({info}), "id", "$1", "run", "(.{{8}}).*")'
    return f"* on (run) group_left (name, id) {short}"
