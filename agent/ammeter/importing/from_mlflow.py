"""Reads a run of an MLflow tracking store: a database, a server or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ammeter.export.errors import library
from ammeter.export.to_mlflow import uri_of
from ammeter.importing.history import History, ImportFailed, only

PAGE_RUNS = 100
"""Runs that are listed to find the only one, or the one with a name."""

SQLITE = "sqlite:///"
"""Begins the address of a database in a file."""

SQLITE_HEADER = b"SQLite format 3\0"
"""Begins the file of a database."""

DATABASE_INFINITY = 1.7976931348623157e308
"""What MLflow's databases store for an infinity."""


def read(target: str, run: str | None) -> History:
    """Returns the metrics, parameters and tags of one run.

    Raises:
        ImportFailed: there is no run, or there are several.
    """
    (mlflow,) = library("mlflow", "mlflow", option="--from")
    if target.startswith(SQLITE) and not _is_database(Path(target.removeprefix(SQLITE).partition("?")[0])):
        raise ImportFailed(f"{target!r} is no database; MLflow would create an empty one there")
    try:
        client = mlflow.MlflowClient(tracking_uri=uri_of(target))
        found = _run(client, target, run)
        history = _identity(client, found, target, mlflow.__version__)
        for metric in found.data.metrics:
            points = client.get_metric_history(found.info.run_id, metric)
            is_counted = len({point.step for point in points}) > 1
            for number, point in enumerate(points):
                step = int(point.step) if is_counted or len(points) == 1 else number  # logged without a step
                history.add(step, {metric: _value(point.value)}, int(point.timestamp) * 10**6)
    except ImportFailed:
        raise
    except Exception as error:  # its stores and their drivers raise errors of their own, all with what they refuse
        raise ImportFailed(f"MLflow cannot read {target!r}: {type(error).__name__}: {error}") from error
    return history


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER


def _run(client: Any, target: str, run: str | None) -> Any:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=PAGE_RUNS) if experiments else []
    by_label = {f"{run.info.run_id} ({run.info.run_name})": run for run in runs}
    if run is not None:
        by_label = {label: one for label, one in by_label.items() if run in (one.info.run_id, one.info.run_name)}
        if not by_label:
            return client.get_run(run)
    return by_label[only(by_label, "MLflow run", target, "name one with --run")]


def _identity(client: Any, found: Any, target: str, version: str) -> History:
    tags = {name: value for name, value in found.data.tags.items() if not name.startswith(("mlflow.", "ammeter."))}
    return History(
        f"{target}#{found.info.run_id}",
        f"mlflow {version}",
        name=found.info.run_name or "",
        project=client.get_experiment(found.info.experiment_id).name,
        config=dict(found.data.params),
        tags=tags,
    )


def _value(value: float) -> float:
    return value * 2 if abs(value) == DATABASE_INFINITY else value  # twice the largest number is an infinity
