"""Writes a run as a run of MLflow, in the experiment with the name of the project."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ammeter.export.errors import ExportFailed, library
from ammeter.export.written import Written
from ammeter.recorded.recorded_run import RecordedRun, Section, Stream

BATCH_METRICS, BATCH_PARAMS, MAX_TEXT_CHARS, MAX_KEY_CHARS = 1000, 100, 6000, 250
"""Limits of MLflow: metrics and parameters per request, and the characters of a parameter's value and of a name."""

FORBIDDEN = re.compile(r"[^\w.\- :/]")
"""Characters that MLflow refuses in the name of a metric or parameter."""

RUN_TAG = "ammeter.run"

STATUSES = {"closed": "FINISHED", "exit": "FINISHED", "signal": "KILLED", "exception": "FAILED", "lost": "FAILED"}


def write(written: Written) -> None:
    """Writes metrics with step and time, the settings as parameters and the tags."""
    mlflow, entities = library("mlflow", "mlflow", "mlflow.entities")
    run, hello = written.run, written.run.hello
    client = mlflow.MlflowClient(tracking_uri=uri_of(written.target))
    experiment = _experiment(client, hello.project)
    _refuse_second(client, experiment, hello.run)
    started = hello.started // 10**6
    made = client.create_run(experiment, started, _keyed(hello.tags), hello.name or hello.run)
    with _deleted_on_error(client, made.info.run_id):
        _log_settings(client, entities, made.info.run_id, hello.config)
        ended = _log_metrics(client, entities, made.info.run_id, written)
        client.set_tag(made.info.run_id, RUN_TAG, hello.run)
        client.set_terminated(made.info.run_id, _status(run), ended // 10**6)
    written.details = {"mlflow_experiment": experiment, "mlflow_run": made.info.run_id}


def keys_of(names: Iterable[str]) -> dict[str, str]:
    """Returns the key of each name: without forbidden characters, unique, and no folder of another key."""
    keys: dict[str, str] = {}
    taken, folders = set[str](), set[str]()
    for name in names:
        parts = FORBIDDEN.sub("_", name[-MAX_KEY_CHARS:]).split("/")
        key = "/".join(part if part.strip(".") else "_" for part in parts)
        if taken.intersection(_parents(key)):
            key = key.replace("/", "_")
        while key in taken or key in folders:
            key = f"{key[: MAX_KEY_CHARS - 1]}_" if len(key) < MAX_KEY_CHARS else f"_{key[:-1]}"
        keys[name] = key
        taken.add(key)
        folders.update(_parents(key))
    return keys


def _parents(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def uri_of(target: str) -> str:
    """Returns the tracking URI that a target means, which may be a folder."""
    is_uri = "://" in target or target.startswith(("file:", "databricks"))
    return target if is_uri else Path(target).resolve().as_uri()


@contextmanager
def _deleted_on_error(client: Any, run_id: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the error that is being raised says more
            client.delete_run(run_id)
        raise


def _experiment(client: Any, project: str) -> str:
    known = client.get_experiment_by_name(project)
    return str(known.experiment_id if known else client.create_experiment(project))


def _refuse_second(client: Any, experiment: str, run: str) -> None:
    """Raises ExportFailed if the run is there already: its metrics would be there twice."""
    quoted = run.replace("'", "")
    found = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{quoted}'", max_results=1)
    if found:
        raise ExportFailed(f"MLflow has this run already, as {found[0].info.run_id}; delete that one first")


def _log_settings(client: Any, entities: Any, run_id: str, config: Mapping[str, Any]) -> None:
    settings = _keyed(dict(_flat(config)))
    params = iter([entities.Param(key, value) for key, value in settings.items()])
    while batch := list(islice(params, BATCH_PARAMS)):
        client.log_batch(run_id, params=batch)


def _keyed(values: Mapping[str, Any]) -> dict[str, str]:
    """Returns values as text that MLflow accepts, by key."""
    keys = keys_of(values)
    return {keys[name]: str(value)[:MAX_TEXT_CHARS] for name, value in values.items()}


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _log_metrics(client: Any, entities: Any, run_id: str, written: Written) -> int:
    """Logs all rows; returns the time of the last one in ns."""
    last, run = 0, written.run
    keys = keys_of(stream.prefix + name for stream in run.streams for name in run.signals)
    for stream in run.streams:
        for section in written.read(stream):
            last = max(last, int(section.times[-1]))
            metrics = _metrics(entities, stream, section, keys)
            while batch := list(islice(metrics, BATCH_METRICS)):
                client.log_batch(run_id, metrics=batch)
    return last


def _metrics(entities: Any, stream: Stream, section: Section, keys: Mapping[str, str]) -> Iterator[Any]:
    for step, time, values in section.records():
        for name, value in values.items():
            yield entities.Metric(keys[stream.prefix + name], value, time // 10**6, step)


def _status(run: RecordedRun) -> str:
    """Returns MLflow's word for how the last rank process ended; RUNNING without a final record of a living one."""
    ranks = [stream for stream in run.streams if stream.rank is not None] or list(run.streams)
    last = max(ranks, key=lambda stream: stream.hello.started)
    return "RUNNING" if last.is_alive else STATUSES[last.scan.ended or "lost"]
