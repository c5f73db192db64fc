"""An upgrade of the collector: it reads the release's database, and goes on with the release's agents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tests.compat import answers
from tests.compat.processes import DEADLINE, Collector, Training
from tests.compat.release import JOURNALS, NEW, Installation
from tests.e2e import stored
from tests.e2e.processes import free_port, wait_for

RUNS = sorted(path.name for path in JOURNALS.iterdir())
STEPS, BAD_FROM, HOLD_AT = 160, 60, 100
SCHEMA = "0008"
"""The database schema of the release."""

RENAMED = {
    "SELECT run, id, heard FROM streams ORDER BY run, id": "SELECT run, id, last_seen FROM streams ORDER BY run, id",
    "SELECT id, folded, whole FROM runs ORDER BY id": "SELECT id, fleet_progress, evaluation FROM runs ORDER BY id",
    "SELECT run, stream, verdict, found FROM findings ORDER BY run, stream, verdict": (
        "SELECT run, stream, verdict, updated FROM findings ORDER BY run, stream, verdict"
    ),
    "SELECT at, who FROM audit ORDER BY at": "SELECT at, actor FROM audit ORDER BY at",
    "SELECT * FROM keeping ORDER BY run": "SELECT * FROM compaction_leases ORDER BY run",
    "SELECT * FROM deleted ORDER BY run": "SELECT * FROM deleted_runs ORDER BY run",
}
"""Queries of the release -> the same queries of this tree."""

OF_THE_RELEASE = re.compile(r"ammeter_(?!collector_)")


def test_the_answers_about_runs_of_the_release_stay_the_same(
    release: Installation, copy_database: Callable[[], str], tmp_path: Path
) -> None:
    before_url, after_url = copy_database(), copy_database()
    NEW.run("ammeter_server", "migrate", "--database-url", after_url)
    with Collector(release, tmp_path, before_url) as before, Collector(NEW, tmp_path, after_url) as after:
        assert RUNS == sorted(run["id"] for run in after.items("/api/v1/runs"))

        def compared() -> list[str]:
            """Judging goes on in both, so that an incident may close in one a moment before the other."""
            return list(answers.lacking(timeless(answers.everything(before, RUNS)), answers.everything(after, RUNS)))

        wait_for(lambda: not compared(), "both answer the same", lambda: "\n".join(compared()), DEADLINE)
        assert answers.everything(after, RUNS)["/api/v1/incidents"]


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    """Without the metrics of the process that answers, and without the moment at which a judge closed an incident."""
    found["/metrics"] = {name: value for name, value in found["/metrics"].items() if OF_THE_RELEASE.match(name)}
    for path, answer in found.items():
        for incident in answer if path.endswith("/incidents") else [answer]:
            if path.startswith("/api/v1/incidents") or path.endswith("/incidents"):
                incident.pop("closed", None)
    return found


def test_renamed_tables_and_columns_keep_their_content_in_both_directions(
    release: Installation, copy_database: Callable[[], str], tmp_path: Path
) -> None:
    database_url = copy_database()
    token = create_token(release, database_url)  # an audit record
    release.run("ammeter_server", "run", "delete", RUNS[0], "--database-url", database_url)
    before = content(database_url, RENAMED)
    assert all(before), before
    NEW.run("ammeter_server", "migrate", "--database-url", database_url)
    assert before == content(database_url, RENAMED.values())
    migrate = ["ammeter_server", "migrate", "--database-url", database_url]
    assert "0009: nothing" in NEW.run(*migrate, "--back-to", SCHEMA, "--yes")
    assert before == content(database_url, RENAMED)
    with Collector(release, tmp_path, database_url, token=token) as collector:
        assert RUNS[1:] == sorted(run["id"] for run in collector.items("/api/v1/runs"))


def content(database_url: str, queries: Iterable[str]) -> list[list[tuple[Any, ...]]]:
    """The rows of each query."""
    with stored.opened(database_url) as connection:
        return [[tuple(row) for row in connection.execute(text(query))] for query in queries]


def test_an_agent_of_the_release_goes_on_over_an_upgrade_of_the_collector(
    release: Installation, copy_database: Callable[[], str], tmp_path: Path
) -> None:
    database_url, port = copy_database(), free_port()
    token = create_token(release, database_url)
    before = Collector(release, tmp_path, database_url, port, token)
    with before:
        training = Training(
            release,
            tmp_path / "training",
            STEPS,
            bad_from=BAD_FROM,
            hold_at=HOLD_AT,
            environment={"AMMETER_URL": before.url, "AMMETER_TOKEN": token, "AMMETER_FLUSH": "60"},
            name="upgraded",
            project="compat",
        )
        path = f"/api/v1/runs/{training.run}"
        wait_for(lambda: open_incidents(before, path), "an incident is open", before.log, DEADLINE)
        (opened,) = open_incidents(before, path)
    NEW.run("ammeter_server", "migrate", "--database-url", database_url)
    with Collector(NEW, tmp_path, database_url, port, token) as after:
        training.go_on()
        training.wait()
        wait_for(lambda: after.ask(path)["state"] == "ended", "the run has ended", after.log, DEADLINE)
        found = after.ask(path)
        assert (STEPS, BAD_FROM, STEPS - BAD_FROM) == tuple(
            found["counters"][name] for name in ("steps", "applied", "skipped")
        )
        assert ({}, {}) == (found["lost"], found["faults"])
        series = after.ask(f"{path}/series?names=samples")
        assert [16.0] * STEPS == series["items"][0]["values"]
        assert list(range(STEPS)) == series["axes"][0]["steps"]
        wait_for(lambda: incident_of(after, path)["last_step"] == STEPS - 1, "it is judged to its end", after.log)
        incident = incident_of(after, path)
        assert opened["id"] == incident["id"]
        assert "scale-collapse" in [found["verdict"] for found in incident["consequences"]]
        shown = after.metrics()
        assert STEPS - BAD_FROM == shown[f'ammeter_steps_total{{outcome="skipped",run="{training.run}"}}']
        assert {"compat"} == {run["project"] for run in after.items("/api/v1/runs")}
        assert {*RUNS, training.run} == {run["id"] for run in after.items("/api/v1/runs")}


def create_token(version: Installation, database_url: str) -> str:
    output = version.run("ammeter_server", "token", "create", "compat", "--database-url", database_url)
    return output.split()[-1]


def incident_of(collector: Collector, path: str) -> dict[str, Any]:
    """The only one about the loss. Where the upgrade took long there was one about the silence, too."""
    (found,) = collector.items(f"{path}/incidents?verdict=nonfinite-loss")
    return dict(found)


def open_incidents(collector: Collector, path: str) -> list[dict[str, Any]]:
    """None as well before the run's first batch."""
    found = collector.items("/api/v1/incidents")
    return [incident for incident in found if incident["state"] == "open" and path.endswith(incident["run"])]
