from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ammeter_server.prometheus.exposition import Exposition
from ammeter_server.prometheus.samples import add_fleet


def total(project: str, name: str, outcome: str, value: int) -> Any:
    class Row(SimpleNamespace):
        def __iter__(self) -> Any:
            return iter((self.project, self.name, self.outcome))

    return Row(project=project, name=name, outcome=outcome, verdict="", severity="", value=value)


def test_every_outcome_of_a_project_is_there_with_0_before_its_first_one() -> None:
    shown = Exposition()
    add_fleet(shown, [total("vision", "runs", "lost", 2), total("speech", "steps", "applied", 7)])
    assert [
        'ammeter_fleet_runs_total{outcome="diverged",project="speech"} 0.0',
        'ammeter_fleet_runs_total{outcome="ended",project="speech"} 0.0',
        'ammeter_fleet_runs_total{outcome="failed",project="speech"} 0.0',
        'ammeter_fleet_runs_total{outcome="lost",project="speech"} 0.0',
        'ammeter_fleet_runs_total{outcome="diverged",project="vision"} 0.0',
        'ammeter_fleet_runs_total{outcome="ended",project="vision"} 0.0',
        'ammeter_fleet_runs_total{outcome="failed",project="vision"} 0.0',
        'ammeter_fleet_runs_total{outcome="lost",project="vision"} 2.0',
    ] == shown.samples["ammeter_fleet_runs_total"].splitlines()
    assert [
        'ammeter_fleet_steps_total{outcome="applied",project="speech"} 7.0',
        'ammeter_fleet_steps_total{outcome="skipped",project="speech"} 0.0',
        'ammeter_fleet_steps_total{outcome="applied",project="vision"} 0.0',
        'ammeter_fleet_steps_total{outcome="skipped",project="vision"} 0.0',
    ] == shown.samples["ammeter_fleet_steps_total"].splitlines()
