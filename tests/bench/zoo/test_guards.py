"""Guards in healthy runs, and losses that scatter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ammeter
from bench.zoo.guards import __main__ as guards
from bench.zoo.guards import healthy_runs
from bench.zoo.guards.__main__ import Case, Line
from bench.zoo.guards.healthy_runs import GuardedTwin
from bench.zoo.guards.training import Run, Training, losses, run
from bench.zoo.plan import Case as ZooCase


def test_all_guards_at_once_leave_a_healthy_run_unchanged_to_the_last_bit(tmp_path: Path) -> None:
    found = healthy_runs.compare(ZooCase("evaluation every so often", precision="fp16"), tmp_path)
    assert (True, (), "") == (found.same, found.did, found.trouble)
    guarded, unguarded = tmp_path / healthy_runs.GUARDED, tmp_path / healthy_runs.UNGUARDED
    assert (guarded / "bits").read_text() == (unguarded / "bits").read_text()
    wrote = [event.data["action"] for event in healthy_runs.guard_events(tmp_path / healthy_runs.GUARDED / "journal")]
    assert {healthy_runs.WROTE} == set(wrote)
    assert [] == healthy_runs.guard_events(tmp_path / healthy_runs.UNGUARDED / "journal")


def test_an_action_of_a_guard_in_a_healthy_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy_runs, "all_guards", lambda: [ammeter.guards.Scale(ceiling=2.0**12)])
    found = healthy_runs.compare(ZooCase("growth and then a backoff", precision="fp16"), tmp_path)
    assert not found.same
    assert "scale restored" in {guarded.partition(" at ")[0] for guarded in found.did}
    assert str(found).endswith("another run")
    row = healthy_runs.table([found])[1]
    assert ("growth and then a backoff", "1", "0") == row[:3]


def test_a_scale_that_sometimes_grows_and_backs_off_is_left_alone(tmp_path: Path) -> None:
    assert healthy_runs.compare(ZooCase("growth and then a backoff", precision="fp16"), tmp_path).left_alone


def test_each_changed_run_is_listed() -> None:
    case = ZooCase("compiled", precision="bf16")
    text = "\n".join(guards.healthy_runs_table([GuardedTwin(case, same=True), GuardedTwin(case, same=False)]))
    assert "in 1 of 2 all losses" in text
    assert "| compiled | 2 | 1 | nothing |" in text
    assert "- compiled bf16 seed 0: another run" in text


def test_losses_are_those_of_the_applied_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path))  # which run() sets, and is taken back behind the test
    done = run(Training("gpt", 30, 0), tmp_path, fault="overflow-storm")
    assert 0 < len(losses(tmp_path)) < 30
    assert done.loss == pytest.approx(losses(tmp_path)[-1], rel=0.3)


def test_a_loss_that_scatters_is_shown_with_its_error() -> None:
    case = Case(("precision",), "activation-overflow@20", "cnn", wide=True, scatters=True)
    line = Line(case, float("nan"), 1.01, 1.0, left_alone=True, run=Run())
    text = {error: "\n".join(guards.table([replace(line, error=error)], 120, 1)) for error in (0.0, 0.008)}
    assert "| nan | 1.0100 | 1.0000 | yes |" in text[0.0]
    assert "| nan | 1.0100 | 1.0000 | yes: +1.0% ± 0.8% |" in text[0.008]
    assert not replace(line, guarded=1.03).rescued
