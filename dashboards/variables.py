"""Variables of boards: projects, runs picked by their names, and the collector's address."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableHide, VariableRefresh, VariableSort

from dashboards.promql import PROJECTS, seen

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

TEXT_AND_RUN = r'/run="(?<value>[^"]+)",text="(?<text>.*)"\} /'
"""Name and short id are shown, the id is used: of a line `{run="...",text="..."} 1 1700000000000`.

Grafana escapes nothing in such a line.
"""

FIRST = 10**12
"""Added to the start times of runs that come before all others."""

STARTED = f"max by (run) ({seen('ammeter_run_start_timestamp_seconds')})"
BASELINES = "ammeter_run_baseline_info"


def projects() -> dashboard.QueryVariable:
    """The variable with the names of all projects, of which several may be selected."""
    return (
        _asked("project", "Project", "label_values(ammeter_run_info, project)")
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def runs() -> dashboard.QueryVariable:
    """The variable with runs, the newest first, of which several may be selected."""
    return _runs("run", "Run", f"{STARTED} or {_info()}").multi(True).include_all(True).all_value(".*")


def compared() -> dashboard.QueryVariable:
    """The variable with one run: by default the newest one that has a baseline."""
    with_baseline = f"{STARTED} + on (run) {FIRST} * max by (run) ({seen(BASELINES)})"
    return _runs("run", "Run", f"{with_baseline} or {STARTED} or {_info()}")


def other() -> dashboard.QueryVariable:
    """The variable with the run to compare with: by default the baseline of the first."""
    baseline = label_as_run(seen(BASELINES, 'run="$run"'))
    return _runs("other", "Compare with", f"{FIRST} * {baseline} or {STARTED} or {_info()}", 'run!="$run"')


def collector() -> dashboard.QueryVariable:
    """The hidden variable with the address of the collector's page, which the collector exports."""
    hidden = _asked("collector", "Collector", "label_values(ammeter_collector_address_info, url)")
    return hidden.sort(VariableSort.ALPHABETICAL_ASC).hide(VariableHide.HIDE_VARIABLE)


def label_as_run(baselines: str) -> str:
    """Returns 1 for each baseline, with its id as `run`."""
    return f'max by (run) (label_replace({baselines}, "run", "$1", "baseline", "(.+)"))'


def _runs(name: str, label: str, order: str, others: str = "") -> dashboard.QueryVariable:
    labels = ",".join(filter(None, (PROJECTS, others)))
    short = f'label_replace({seen("ammeter_run_info", labels)}, "id", "$1", "run", "(.{{8}}).*")'
    texts = f'max by (run, text) (label_join({short}, "text", " ", "name", "id"))'
    query = f"query_result(sort_desc({texts} * on (run) group_left () ({order})))"
    return _asked(name, label, query).regex(TEXT_AND_RUN).sort(VariableSort.DISABLED)


def _info() -> str:
    return f"max by (run) ({seen('ammeter_run_info')})"


def _asked(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
