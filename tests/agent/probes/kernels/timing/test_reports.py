"""What a run records of the time in its operators: names, dtypes, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.step_census import StepCensus
from ammeter.probes.kernels.timing.durations import Durations
from ammeter.probes.kernels.timing.reports import MAX_REPORTED, OTHER, REPORT_CENSUSES, DurationReports
from ammeter.recording.row import Row
from tests.agent.networks import NETWORKS, train
from tests.agent.training import events, stream


class Slow(torch.nn.Module):
    """A singular value decomposition takes far more time than all else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.linalg.svdvals(torch.eye(300) + 0.01 * self.first(x).detach().float().mean())
        return self.last(self.first(x)) * size.mean()  # type: ignore[no-any-return]


def trained(folder: Path, dtype: torch.dtype | None, **options: Any) -> list[dict[str, Any]]:
    """Ten steps; returns what was recorded of the time in operators."""
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=folder, **options)
    for _ in range(10):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(torch.randn(4, 16)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    _, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return [event.data for event in events(frames, "kernels.timed")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_an_operator_that_is_slow_on_purpose_is_the_first_one(dtype: torch.dtype | None, tmp_path: Path) -> None:
    recorded = trained(tmp_path, dtype)
    assert recorded
    for data in recorded:
        first, *others = data["operators"]
        assert ("_linalg_svd", "float32", data["steps"]) == (first["op"], first["dtype"], first["calls"])
        assert first["typical_seconds"] > sum(other["typical_seconds"] for other in others)
        assert 0 < first["typical_seconds"] <= first["seconds"]
        assert 0 < data["operator_seconds"] < data["seconds"]
        assert data["whole"]
        products = {other["dtype"]: other["calls"] for other in others if other["op"] == "addmm"}
        assert {"float32" if dtype is None else "bfloat16": 3 * data["steps"]} == products


def test_the_entries_of_a_record_are_all_the_time_in_operators(tmp_path: Path) -> None:
    for data in train(NETWORKS["attention"], tmp_path).of("kernels.timed"):
        *named, last = data["operators"]
        assert MAX_REPORTED == len(named)
        assert (OTHER, OTHER) == (last["op"], last["dtype"])
        assert data["operator_seconds"] == pytest.approx(sum(entry["seconds"] for entry in data["operators"]))
        typical = [entry["typical_seconds"] for entry in named]
        assert typical == sorted(typical, reverse=True)


def test_with_the_preset_full_a_backward_pass_is_timed_once(tmp_path: Path) -> None:
    recorded = trained(tmp_path, torch.bfloat16, preset="full")
    (backward,) = (data for data in recorded if data["phase"] == "backward")
    assert 1 == backward["steps"]
    assert "mm" in {operator["op"] for operator in backward["operators"]}


def test_a_run_reports_at_powers_of_two_and_in_steady_distances_whatever_is_between() -> None:
    reports, product = DurationReports(), torch.ones(2, 2)
    reported: list[tuple[int, int]] = []
    for number in range(1, 4 * REPORT_CENSUSES + 1):
        step, row = StepCensus(with_references=False), Row(number)
        step.calls = [Census()]
        step.calls[0].durations.end(torch.ops.aten.mm.default, (), product, 0.5, None)
        reports.report(row, step)
        reported += [(number, data["steps"]) for _, data in row.events]
        assert all(0.5 * data["steps"] == data["operator_seconds"] for _, data in row.events)
    powers = [(1, 1), (2, 1), (4, 2), (8, 4), (16, 8), (32, 16), (64, 32)]
    assert [*powers, (128, 64), (192, 64), (256, 64)] == reported


def test_a_step_in_which_another_process_had_the_core_does_not_count() -> None:
    reports, product = DurationReports(), torch.ones(2, 2)
    for number, seconds in enumerate((1.0, 1.0, 1.0, 1.0, 0.5, 90.0, 0.5, 0.25)):
        step, row = StepCensus(with_references=False), Row(number)
        step.calls = [Census(), Census()]
        for census in step.calls:
            census.durations.end(torch.ops.aten.mm.default, (), product, seconds / 2, None)
        if number == 5:
            step.calls[0].durations.end(torch.ops.aten.relu.default, (), product, 8.0, None)
        reports.report(row, step)
    ((_, data),) = row.events  # of the last four steps
    relu, mm = data["operators"]
    assert ("relu", 1, 8.0, 2.0) == (relu["op"], relu["calls"], relu["seconds"], relu["typical_seconds"])
    assert ("mm", 8, 91.25, 0.5) == (mm["op"], mm["calls"], mm["seconds"], mm["typical_seconds"])
    assert 99.25 == data["operator_seconds"]


def test_a_step_without_operators_is_not_reported_and_one_that_was_not_timed_is_marked() -> None:
    reports, row = DurationReports(), Row(1)
    step = StepCensus(with_references=False)
    step.calls = [Census()]
    reports.report(row, step)
    assert [] == row.events
    meta = torch.ones(2, device="meta")
    for tensor in (meta, torch.ones(2)):
        step.calls[0].durations.end(torch.ops.aten.relu.default, (), tensor, 0.5, None)
    reports.report(row, step)
    ((_, data),) = row.events
    assert (["relu"], False) == ([operator["op"] for operator in data["operators"]], data["whole"])


def test_what_a_device_has_yet_to_do_delays_the_row_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The durations of all passes arrive when the run ends, as events of a busy device would."""
    waiting = [True]
    monkeypatch.setattr(Durations, "on_host", property(lambda self: False))
    monkeypatch.setattr(Durations, "ready", lambda self: not waiting[0])
    emitted: list[int] = []
    original = DurationReports._emit

    def emit(self: DurationReports, row: Row, phase: str, times: Any) -> None:
        emitted.append(row.step)
        original(self, row, phase, times)

    monkeypatch.setattr(DurationReports, "_emit", emit)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for _ in range(4):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [] == emitted
    waiting[0] = False
    run.close()
    assert emitted[0] == 1
    view, frames = stream(run.id, tmp_path)
    assert 4 == len(view)
    assert emitted == [event.step for event in events(frames, "kernels.timed")]
