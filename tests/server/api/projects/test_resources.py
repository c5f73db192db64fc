"""Cost, weekly report and readiness of a project, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.__main__ import main
from ammeter_server.auth import tokens
from tests.server.callers import bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import Stream, serving, wait_until
from tests.server.fleet.project import PRICES, complete, fill, new, plain

Output = pytest.CaptureFixture[str]


@dataclass
class Project:
    client: httpx.Client
    database: str
    runs: dict[str, Stream]

    def get(self, resource: str, **params: Any) -> Any:
        answer = self.client.get(f"/api/v1/projects/demo/{resource}", params=params)
        assert 200 == answer.status_code, answer.text
        return answer.json()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    with (
        postgresql() if request.param == "postgresql" else nullcontext("") as url,
        serving(folder, url, cost_per_hour=PRICES) as client,
    ):
        client.headers["X-Ammeter-Request"] = "test"
        runs = fill(client)
        assert 200 == client.post(f"/api/v1/runs/{runs['base'].run}/baseline").status_code
        yield Project(client, url or f"sqlite:///{folder / 'collector.db'}", runs)


def test_the_cost_is_that_of_the_ended_runs_by_outcome_and_per_success(project: Project) -> None:
    cost = project.get("cost")["cost"]
    parts = {part["name"]: (part["runs"], round(part["dollars"], 1)) for part in cost["outcomes"]}
    resumed = 4.0 * 2
    assert {"ended": (3, 40.0 + 20.0 + resumed), "failed": (1, 4.0), "lost": (1, 0.0)} == parts
    assert pytest.approx(72.0, abs=0.05) == cost["dollars"]
    assert pytest.approx(24.0, abs=0.05) == cost["dollars_per_success"]
    assert pytest.approx(4.0, abs=0.02) == cost["unsuccessful_dollars"]
    assert 0 == cost["unpriced_runs"]


def test_steps_that_a_later_attempt_repeats_are_counted_with_their_share_of_its_time(project: Project) -> None:
    cost = project.get("cost")["cost"]
    assert 40 == cost["replaced_steps"]
    assert pytest.approx(4.0 * 40 / 100, rel=0.01) == cost["replaced_dollars"]
    run = project.client.get(f"/api/v1/runs/{project.runs['resumed'].run}").json()
    assert (40, pytest.approx(1.6, rel=0.01)) == (run["replaced_steps"], run["replaced_cost_dollars"])


def test_a_period_has_the_runs_that_ended_in_it(project: Project) -> None:
    assert 0 == project.get("cost", until="2020-01-01T00:00:00Z")["cost"]["runs"]
    assert 3 == project.get("cost", days=1)["cost"]["runs"], "two of the five ended more than a day ago"


def test_the_report_says_what_failed_what_most_runs_have_and_what_to_do(project: Project) -> None:
    report = project.get("report")
    failed = {run["run"]: run for run in report["failed"]}
    assert {project.runs["broken"].run, project.runs["lost"].run} == set(failed)
    broken = failed[project.runs["broken"].run]
    assert ("failed", "ben", "nonfinite-gradient", 60) == tuple(
        broken[name] for name in ("outcome", "owner", "verdict", "last_step")
    )
    assert broken["cause"].startswith("In 20 steps from 41 to 60 the gradients contained NaN or Inf")
    assert [{"operator": "aten::mm", "reason": "fp32-input", "runs": 1, "share": pytest.approx(0.31)}] == report[
        "fallbacks"
    ]
    counts = {count["verdict"]: (count["runs"], count["still_open"]) for count in report["incidents"]}
    assert (1, 1) == counts["nonfinite-gradient"] == counts["run-lost"]
    assert {"page still open"} <= {action["reason"][-15:] for action in report["actions"]}
    assert not any("Pin a float32 run" in action["todo"] for action in report["actions"])
    assert any("Save checkpoints more often" in action["todo"] for action in report["actions"])


def test_the_markdown_shows_what_a_run_is_called_and_does_nothing_with_it(project: Project) -> None:
    answer = project.client.get("/api/v1/projects/demo/report.md")
    assert "text/markdown; charset=utf-8" == answer.headers["content-type"]
    lines = answer.text.splitlines()
    assert lines[0].startswith("# demo: 20")
    assert "5 runs ended: 3 well, 1 failed, 1 lost. 0 still running." in answer.text
    (row,) = [line for line in lines if "night" in line and line.startswith("|")]
    assert "| broken \\| \\*night\\* | ben | failed | 60 | $4.00 |" in row
    headings = [
        "What to do",
        "Failed runs",
        "Incidents",
        "Operators in float32 that could run in low precision",
        "Cost",
    ]
    assert [f"## {heading}" for heading in headings] == [line for line in lines if line.startswith("##")]


def test_a_project_with_everything_is_ready_and_each_line_says_where(project: Project) -> None:
    checked = project.get("readiness")
    assert (True, project.runs["amp"].run) == (checked["ready"], checked["candidate"])
    found = {line["name"]: line["found"] for line in checked["lines"]}
    assert "fp32, pinned for the project, float32, ended" == found["baseline"]
    assert "val_loss at step 199 is 0.33 % worse, at most 1 % worse, 2.00 times as fast" in found["mixed precision"]
    assert "complete" == found["last checkpoint"].rpartition(", ")[2]
    assert "bf16, step 199: /ckpt/last.pt was read back and is complete" == found["restore"]
    assert "bf16, 5 steps from step 120" == found["profile"]
    assert all(line["link"].endswith(str(line["run"])) for line in checked["lines"])


def test_the_commands_print_the_same_and_their_code_says_whether_it_is_ready(project: Project, capsys: Output) -> None:
    assert 0 == main(["readiness", "demo", "--database-url", project.database])
    assert "# Readiness of demo: ready" in capsys.readouterr().out
    assert 0 == main(["report", "demo", "--week", "--json", "--database-url", project.database])
    assert '"failed_not_listed": 0' in capsys.readouterr().out
    assert 2 == main(["report", "nobody", "--database-url", project.database])
    assert "there is no run in project 'nobody'; projects with runs: demo" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report", "demo", "--days", "0"])
    assert "'0' is not a number of days from 1 to 366; use 7" in capsys.readouterr().err


def test_a_project_of_one_float32_run_lacks_everything_and_is_told_what_to_do(tmp_path: Path, capsys: Output) -> None:
    with serving(tmp_path) as client:
        run = plain(new(client, "young", "first", 5), 0.1, 3.0, hours=1)
        wait_until(lambda: client.get(f"/api/v1/runs/{run.run}").json()["state"] == "ended")
        checked = client.get("/api/v1/projects/young/readiness").json()
        cost = client.get("/api/v1/projects/young/cost").json()["cost"]
        actions = client.get("/api/v1/projects/young/report").json()["actions"]
    assert 1 == main(["readiness", "young", "--database-url", f"sqlite:///{tmp_path / 'collector.db'}"])
    assert "| NO | baseline | first names no baseline, and none is pinned | Train in float32" in capsys.readouterr().out
    assert not checked["ready"]
    assert {"pages": True} == {line["name"]: line["ready"] for line in checked["lines"] if line["ready"]}
    assert all(line["todo"] for line in checked["lines"] if not line["ready"])
    assert (None, None, 1) == (cost["dollars"], cost["dollars_per_success"], cost["unpriced_runs"])
    assert ["AMMETER_SERVER_COST_PER_HOUR", "ammeter baseline pin"] == [
        name for name in ("AMMETER_SERVER_COST_PER_HOUR", "ammeter baseline pin") if name in str(actions)
    ]


def test_a_run_that_validates_worse_is_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        client.headers["X-Ammeter-Request"] = "test"
        base = plain(new(client, "demo", "fp32", 50), 0.1, 2.0, hours=1)
        complete(new(client, "demo", "bf16", 30))
        ended = {"ended"}
        wait_until(lambda: ended == {run["state"] for run in client.get("/api/v1/runs").json()["items"]})
        client.post(f"/api/v1/runs/{base.run}/baseline")
        lines = {line["name"]: line for line in client.get("/api/v1/projects/demo/readiness").json()["lines"]}
    assert not lines["mixed precision"]["ready"]
    assert "is 50.50 % worse, at most 1 % worse" in lines["mixed precision"]["found"]
    assert "Follow the runbook of validation-drift." == lines["mixed precision"]["todo"]


def test_another_project_does_not_exist_for_a_token_of_one(tmp_path: Path) -> None:
    with guarded(tmp_path) as place:
        own = tokens.create(place.store, "own", ("ingest", "read"), "demo")
        stream = Stream(place.client, project="demo", headers=bearer(own))
        stream.tell(0, {"loss": 1.0})
        stream.send()
        for resource in ("cost", "report", "report.md", "readiness"):
            path = f"/api/v1/projects/{{}}/{resource}"
            assert 200 == place.client.get(path.format("demo"), headers=bearer(own)).status_code
            refused = place.client.get(path.format("other"), headers=bearer(own))
            assert (404, True) == (refused.status_code, "there is no run in project 'other'" in refused.text)
