"""The client reads from a collector of the release everything that that collector has."""

from __future__ import annotations

from pathlib import Path

from ammeter.client import Client
from tests.compat.conftest import copy_file
from tests.compat.processes import Collector
from tests.compat.release import Installation


def test_the_client_reads_a_collector_of_the_release(release: Installation, tmp_path: Path) -> None:
    with Collector(release, tmp_path, copy_file(tmp_path)) as collector, Client(collector.url) as client:
        runs = list(client.runs(page_size=2))
        assert 1 < len(runs)
        assert [run.id for run in runs] == [run["id"] for run in collector.items("/api/v1/runs")]
        assert runs[0] == client.run(runs[0].id)
        losses = {run.id: list(client.curves(run.id, "loss")) for run in runs}
        assert all(len(curve.steps) == len(curve.values) > 0 for curves in losses.values() for curve in curves)
        assert sum(map(len, losses.values())) >= len(runs)
        assert any(list(client.tensors(run.id)) for run in runs)
        assert any(list(client.events(run.id)) for run in runs)
        incidents = list(client.incidents())
        assert incidents
        assert incidents[0] == client.incident(incidents[0].id)
        assert runs[0].name == client.compare(runs[0].id, runs[1].id).run.name
