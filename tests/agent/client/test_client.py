"""The client reads and changes what a real collector has."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from ammeter.client import Client, Curve, NotFoundError, RefusedError
from tests.agent.client.conftest import Fleet
from tests.house import tree
from tests.server.feeding import BEGIN, STEP, TENSORS


@pytest.fixture
def client(fleet: Fleet) -> Client:
    return Client(fleet.url)


def test_runs_come_newest_first_over_all_pages(client: Client, fleet: Fleet) -> None:
    assert [fleet.broken.run, fleet.healthy.run] == [run.id for run in client.runs(page_size=1)]


def test_runs_are_selected_by_state_and_project(client: Client, fleet: Fleet) -> None:
    assert [fleet.healthy.run] == [run.id for run in client.runs(state="ended", project="demo")]
    assert [] == list(client.runs(project="other"))


def test_a_list_requests_only_the_pages_that_are_read(client: Client, fleet: Fleet) -> None:
    runs = client.runs(page_size=1)
    assert fleet.broken.run == next(runs).id
    client.close()
    assert fleet.healthy.run == next(runs).id


def test_a_run_has_its_numbers_times_and_config(client: Client, fleet: Fleet) -> None:
    run = client.run(fleet.healthy.run)
    assert ("fp32", "demo", "ended", 299, 1) == (run.name, run.project, run.state, run.last_step, run.world_size)
    assert datetime.fromtimestamp(BEGIN / 1e9, UTC) == run.started
    assert {"lr": 3e-4, "precision": "fp16"} == run.config
    assert 65536.0 == run.latest["scale"]


def test_a_latest_value_that_is_not_finite_is_a_number(client: Client, fleet: Fleet) -> None:
    assert np.isnan(client.run(fleet.broken.run).latest["grad_norm"])


def test_a_curve_is_arrays_with_every_value(client: Client, fleet: Fleet) -> None:
    (curve,) = client.curves(fleet.healthy.run, "loss")
    assert ("loss", 0, fleet.healthy.stream, True) == (curve.name, curve.rank, curve.stream, curve.complete)
    assert list(range(300)) == curve.steps.tolist()
    assert ["int64", "float64", "float32"] == [str(array.dtype) for array in (curve.steps, curve.times, curve.values)]
    assert np.float32(4.2 + 1.1) == curve.values[0]
    assert BEGIN / 1e9 + 10 * STEP / 1e9 == pytest.approx(curve.times[10], abs=1e-3)


def test_curves_have_the_range_and_the_tensors_that_are_wanted(client: Client, fleet: Fleet) -> None:
    names = ["scale", f"grad.norm:{TENSORS[1].name}"]
    found = list(client.curves(fleet.broken.run, names, rank=[0], first=118, last=121))
    assert names == [curve.name for curve in found]
    assert [[118, 119, 120, 121]] * 2 == [curve.steps.tolist() for curve in found]
    assert [65536.0, 65536.0, 65536.0, 32768.0] == found[0].values.tolist()
    assert [False, False, True, True] == np.isnan(found[1].values).tolist()


def test_curves_of_several_pages_are_one_list(client: Client, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["scale", "loss", "grad_norm"]
    whole = list(client.curves(fleet.healthy.run, names))
    read = client._requests.read
    monkeypatch.setattr(client._requests, "read", lambda resource, query: read(resource, {**query, "page_size": 1}))
    parts = list(client.curves(fleet.healthy.run, names))
    assert sorted(names) == sorted(curve.name for curve in parts)
    assert all(same(one, other) for one, other in zip(whole, parts, strict=True))


def same(one: Curve, other: Curve) -> bool:
    return (
        one.name == other.name and np.array_equal(one.values, other.values) and np.array_equal(one.steps, other.steps)
    )


def test_a_column_that_was_never_measured_has_no_curve(client: Client, fleet: Fleet) -> None:
    assert [] == list(client.curves(fleet.healthy.run, "device_allocated_bytes"))


def test_tensors_have_their_latest_statistics(client: Client, fleet: Fleet) -> None:
    found = list(client.tensors(fleet.broken.run, ["grad.norm", "grad.nans"], page_size=3))
    assert [tensor.name for tensor in TENSORS] == [item.name for item in found if item.stat == "grad.norm"]
    assert np.isnan(found[0].value)
    assert (149, [64, 16], 1024) == (found[0].step, found[0].shape, found[0].numel)


def test_events_are_selected_by_name_and_step(client: Client, fleet: Fleet) -> None:
    found = list(client.events(fleet.broken.run, name=["step.skipped", "scaler.*"], first=120, last=121, page_size=2))
    assert {"step.skipped", "scaler.backoff"} == {event.name for event in found}
    assert [121, 121, 120, 120] == [event.step for event in found]
    assert 2 == next(event for event in found if event.name == "step.skipped").data["consecutive"]


def test_incidents_are_selected_by_run_verdict_state_and_time(client: Client, fleet: Fleet) -> None:
    (incident,) = client.incidents(fleet.broken.run, verdict="nonfinite-gradient", state=["open", "acknowledged"])
    assert (fleet.broken.run, "nonfinite-gradient", "page") == (incident.run, incident.verdict, incident.severity)
    assert TENSORS[2].name in incident.cause
    assert incident.opened is not None
    later = incident.opened + timedelta(seconds=1)
    assert [] == list(client.incidents(verdict="nonfinite-gradient", since=later))
    assert incident == client.incident(incident.id)


def test_an_incident_is_acknowledged_silenced_and_closed(client: Client, fleet: Fleet) -> None:
    incident = next(client.incidents(fleet.broken.run))
    assert client.acknowledge(incident.id).acknowledged is not None
    silenced = client.silence(incident.id, hours=2).silenced
    assert silenced is not None
    assert 1.9 < (silenced - datetime.now(UTC)).total_seconds() / 3600 < 2.1
    assert ("closed", "closed") == (client.close_incident(incident.id).state, client.close_incident(incident.id).state)
    with pytest.raises(RefusedError, match="sends no notifications"):
        client.silence(incident.id)


def test_two_runs_are_compared_with_their_curves(client: Client, fleet: Fleet) -> None:
    comparison = client.compare(fleet.broken.run, fleet.healthy.run, names="grad_norm", first=100)
    assert ("fp16", "fp32") == (comparison.run.name, comparison.baseline.name)
    assert 1.0 == comparison.numbers["speedup"]
    curve = next(curve for curve in comparison.curves if curve.name == "grad_norm")
    assert list(range(100, 150)) == curve.steps.tolist()
    assert (False, True) == (bool(np.isnan(curve.run[19])), bool(np.isnan(curve.run[20])))
    assert np.isfinite(curve.baseline).all()


def test_an_id_with_signs_of_a_url_is_one_id(client: Client) -> None:
    with pytest.raises(NotFoundError, match=r"there is no run 'a b\?c=%2F#'"):
        client.run("a b?c=%2F#")


def test_a_filter_that_selects_nothing_by_its_kind_is_refused_at_once(client: Client, fleet: Fleet) -> None:
    with pytest.raises(ValueError, match="rank selects incidents of one run"):
        next(client.incidents(rank=0))
    with pytest.raises(ValueError, match="project those of all runs"):
        next(client.incidents(fleet.broken.run, project="demo"))


def test_the_programs_in_the_page_of_the_client_run_as_they_are_printed(fleet: Fleet) -> None:
    blocks = tree.fenced(tree.ROOT / "docs" / "client.md", "python")
    assert 5 == len(blocks)
    program = "\n".join(blocks).replace("http://127.0.0.1:8480", fleet.url)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    assert "fp32 ended 299" in done.stdout
    assert "300 float32 1." in done.stdout
    assert "404 " in done.stdout


def test_the_client_needs_no_torch(fleet: Fleet, tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        f"from ammeter.client import Client; print(len(list(Client({fleet.url!r}).runs())))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert "2\n" == done.stdout, done.stderr
