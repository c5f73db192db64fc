"""The collector of the release with a newer agent: training hosts may be upgraded first."""

from __future__ import annotations

from pathlib import Path

from tests.compat.processes import DEADLINE, Collector, Training
from tests.compat.release import NEW, Installation
from tests.e2e.processes import wait_for

STEPS, BAD_FROM = 120, 60


def test_a_collector_of_the_release_stores_and_judges_a_run_of_the_new_agent(
    release: Installation, tmp_path: Path
) -> None:
    with Collector(release, tmp_path, f"sqlite:///{tmp_path / 'collector.db'}") as collector:
        environment = {"AMMETER_URL": collector.url, "AMMETER_FLUSH": "60"}
        training = Training(
            NEW, tmp_path / "training", STEPS, bad_from=BAD_FROM, environment=environment, name="new", project="compat"
        )
        training.wait()
        path = f"/api/v1/runs/{training.run}"
        wait_for(lambda: collector.ask(path)["state"] == "ended", "the run has ended", collector.log, DEADLINE)
        found = collector.ask(path)
        assert ("new", "compat", STEPS - 1) == (found["name"], found["project"], found["last_step"])
        assert (STEPS, BAD_FROM) == (found["counters"]["steps"], found["counters"]["applied"])
        assert ({}, {}) == (found["lost"], found["faults"])
        wait_for(lambda: collector.items(f"{path}/incidents"), "it is judged", collector.log, DEADLINE)
        (incident,) = collector.items(f"{path}/incidents")
        assert ("nonfinite-loss", "page", BAD_FROM) == (
            incident["verdict"],
            incident["severity"],
            incident["first_step"],
        )
        shown = collector.metrics()
        assert BAD_FROM == shown[f'ammeter_steps_total{{outcome="applied",run="{training.run}"}}']
