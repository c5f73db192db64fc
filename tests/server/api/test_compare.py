from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.verdicts.framework.run_history import RunHistory
from ammeter_server.config.settings import Settings
from ammeter_server.curves import run_histories
from ammeter_server.db import connect
from ammeter_server.db.queries import judge as judgements
from ammeter_server.judging import cross_rank
from ammeter_server.judging.judge import Judge
from tests.server.feeding import Stream, serving, wait_until
from tests.server.ops.test_metrics import scrape

CONFIG: dict[str, Any] = {"lr": 3e-4, "seed": 0}
GIB = 2.0**30
Row = Callable[[int], dict[str, float]]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def new(
    client: httpx.Client, name: str, config: dict[str, Any] = CONFIG, age: float = 600, project: str = "demo"
) -> Stream:
    begin = time.time_ns() - int(age * 10**9)
    return Stream(client, name=name, project=project, config=config, begin=begin)


def train(
    stream: Stream, last: int = 199, first: int = 0, *, dtype: str = "", ends: bool = True, row: Row = lambda step: {}
) -> Stream:
    """Steps of 10 ms, validated at every twentieth; dtype: of autocast."""
    if dtype and not first:
        stream.say("autocast.entered", 0, device="cuda", dtype=dtype, grad=True)
    for step in range(first, last + 1):
        data = {"loss": 2.0 + 1 / (step + 1), "applied": 1.0, "skipped": 0.0, "step_seconds": 0.01}
        if step % 20 == 19:
            data |= {"val_loss": 3.0, "device_allocated_bytes": 8 * GIB}
        stream.tell(step, data | row(step))
    if ends:
        stream.bye(last)
    stream.send()
    return stream


def worse(step: int) -> dict[str, float]:
    return {"val_loss": 3.3} if step % 20 == 19 else {}


def compared(client: httpx.Client, run: Stream, baseline: Stream, **asked: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{run.run}/compare/{baseline.run}", params=asked)
    assert 200 == answer.status_code, answer.text
    document: dict[str, Any] = answer.json()
    return document


def incidents(client: httpx.Client, run: Stream) -> dict[str, dict[str, Any]]:
    items = client.get(f"/api/v1/runs/{run.run}/incidents").json()["items"]
    return {item["verdict"]: item for item in items}


def test_two_runs_stand_side_by_side_at_the_steps_of_both(client: httpx.Client) -> None:
    base = train(new(client, "base"))
    run = train(new(client, "half"), 119, dtype="bfloat16", row=lambda step: {"step_seconds": 0.005} | worse(step))
    comparison = compared(client, run, base)
    assert ({"id": base.run, "name": "base", "precision": "float32"}, "bfloat16") == (
        comparison["baseline"],
        comparison["run"]["precision"],
    )
    assert pytest.approx(2.0) == comparison["numbers"]["speedup"]
    assert pytest.approx(0.1) == comparison["numbers"]["validation_delta"]
    assert 1.0 == comparison["numbers"]["memory_ratio"]
    series = {curve["name"]: curve for curve in comparison["series"]}
    assert list(range(120)) == series["loss"]["steps"]
    assert [19, 39, 59, 79, 99, 119] == series["val_loss"]["steps"]
    assert ([3.0] * 6, pytest.approx([3.3] * 6)) == (series["val_loss"]["baseline"], series["val_loss"]["run"])
    assert ["memory-not-saved", "validation-drift"] == [finding["verdict"] for finding in comparison["findings"]]
    assert [] == comparison["differences"]


def test_settings_that_differ_are_told_and_come_first(client: httpx.Client) -> None:
    base = train(new(client, "base"))
    run = train(new(client, "half", config={**CONFIG, "batch": 8}), dtype="float16", row=worse)
    comparison = compared(client, run, base)
    everything = ["speed", "memory", "cost", "validation"]
    assert [{"key": "batch", "run": 8, "baseline": None, "forbids": everything}] == comparison["differences"]
    assert ["not-comparable"] == [finding["verdict"] for finding in comparison["findings"]]
    assert (
        dict.fromkeys(everything, "not comparable: batch is 8 against not set") == comparison["numbers"]["not_compared"]
    )
    assert (None, None, None, []) == tuple(
        comparison["numbers"][name] for name in ("speedup", "memory_ratio", "validation_delta", "metrics")
    )


def test_another_learning_rate_forbids_to_compare_validation_and_nothing_else(client: httpx.Client) -> None:
    base = train(new(client, "base"))
    run = train(new(client, "half", config={**CONFIG, "lr": 1.0}), dtype="float16", row=worse)
    comparison = compared(client, run, base)
    assert {"validation": "not comparable: lr is 1.0 against 0.0003"} == comparison["numbers"]["not_compared"]
    assert (1.0, 1.0, None) == tuple(
        comparison["numbers"][name] for name in ("speedup", "memory_ratio", "validation_delta")
    )
    assert ["not-comparable", "memory-not-saved"] == [finding["verdict"] for finding in comparison["findings"]]


def test_long_series_keep_their_extremes_and_what_is_no_number_is_words(client: httpx.Client) -> None:
    def spoiled(step: int) -> dict[str, float]:
        return {"loss": math.nan if step == 77 else 9.0 if step == 78 else 2.0}

    base = train(new(client, "base"))
    (loss,) = (
        curve
        for curve in compared(client, train(new(client, "run"), row=spoiled), base, points=32)["series"]
        if curve["name"] == "loss"
    )
    assert len(loss["steps"]) <= 32
    at = loss["steps"].index(77)
    assert ["NaN", 9.0] == loss["run"][at : at + 2]
    assert all(isinstance(value, float) for value in loss["baseline"])


def test_any_series_is_aligned_on_the_steps_that_both_have(client: httpx.Client) -> None:
    def norms(every: int) -> Row:
        return lambda step: {"grad_norm": float(step), "scale": math.inf} if step % every == 0 else {"clip_max": 1.0}

    base, run = train(new(client, "base"), row=norms(2)), train(new(client, "run"), 99, row=norms(3))
    comparison = compared(client, run, base, names="grad_norm,loss,scale,clip_max,nothing", **{"from": 10, "to": 40})
    series = {curve["name"]: curve for curve in comparison["series"]}
    assert [12, 18, 24, 30, 36] == series["grad_norm"]["steps"]
    assert [12.0, 18.0, 24.0, 30.0, 36.0] == series["grad_norm"]["run"] == series["grad_norm"]["baseline"]
    assert ["Infinity"] * 5 == series["scale"]["run"]
    assert [step for step in range(10, 41) if step % 2 and step % 3] == series["clip_max"]["steps"]
    assert list(range(10, 41)) == series["loss"]["steps"]
    assert "nothing" not in series
    assert pytest.approx(1.0) == comparison["numbers"]["speedup"]
    assert len(comparison["series"]) == len(series)
    empty = new(client, "empty")
    empty.send()
    assert [] == compared(client, run, empty, names="grad_norm")["series"]


def test_a_run_that_is_not_there_is_a_404_and_one_without_steps_has_nothing_in_common(client: httpx.Client) -> None:
    run = train(new(client, "run"))
    assert 404 == client.get(f"/api/v1/runs/{run.run}/compare/nobody").status_code
    assert 404 == client.get(f"/api/v1/runs/nobody/compare/{run.run}").status_code
    empty = new(client, "empty")
    empty.send()
    comparison = compared(client, run, empty)
    assert ([], [], None) == (comparison["series"], comparison["findings"], comparison["numbers"]["speedup"])


def test_a_run_that_names_its_baseline_gets_incidents_and_metrics(client: httpx.Client) -> None:
    base = train(new(client, "base"))
    run = new(client, "half", age=60)  # of older ones /metrics says nothing any more
    run.tags = {"baseline": "base", "validation_delta": "0.05"}
    train(run, dtype="bfloat16", row=lambda step: {"step_seconds": 0.02} | worse(step))
    wait_until(lambda: {"validation-drift", "slower-than-fp32"} <= set(incidents(client, run)))
    drift = incidents(client, run)["validation-drift"]
    assert ("ticket", "run ended") == (drift["severity"], drift["closed_reason"])
    assert "At step 199 it is 3.3 against 3: 10.0 % worse" in drift["cause"]
    assert {} == incidents(client, base)
    shown = scrape(client)
    label = f'{{run="{run.run}"}}'
    labels = f'{{baseline="{base.run}",baseline_precision="float32",run="{run.run}"}}'
    assert 1 == shown[f"ammeter_run_baseline_info{labels}"]
    assert 0.5 == pytest.approx(shown[f"ammeter_speedup_vs_baseline_ratio{label}"])
    assert 1.0 == pytest.approx(shown[f"ammeter_memory_vs_baseline_ratio{label}"])
    assert 0.1 == pytest.approx(shown[f"ammeter_validation_delta_ratio{label}"])
    assert f'ammeter_validation_delta_ratio{{run="{base.run}"}}' not in shown


def test_a_live_run_is_compared_as_it_goes_on_and_recovers(client: httpx.Client, tmp_path: Path) -> None:
    base = train(new(client, "base"))
    run = new(client, "half", config={**CONFIG, "baseline": base.run})
    judge = Judge(store := connect(f"sqlite:///{tmp_path / 'collector.db'}"), Settings(), [])

    def look() -> dict[str, Any] | None:
        judge.judge(run.run, time.time_ns())
        return incidents(client, run).get("validation-drift")

    train(run, 59, dtype="bfloat16", ends=False, row=worse)
    opened = wait_until(look)
    assert ("open", 19, 59) == (opened["state"], opened["first_step"], opened["opened_step"])
    train(run, 159, 60, ends=False)
    assert "recovered" == wait_until(lambda: (told := look()) and told["closed_reason"])
    store.close()


def test_what_one_look_has_no_time_for_is_read_by_the_next(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_rank, "MAX_READ_SECONDS", 0.0)
    base, run = new(client, "base"), new(client, "half", {**CONFIG, "baseline": "base"})
    for stream, row in ((base, lambda step: {}), (run, worse)):
        for first in range(0, 200, 40):
            train(stream, first + 39, first, ends=first == 160, row=row)
    wait_until(lambda: "validation-drift" in incidents(client, run))
    wait_until(lambda: incidents(client, run)["validation-drift"]["last_step"] == 199)


@pytest.mark.parametrize("most", [run_histories.MAX_CACHED_STEPS, 150])
def test_a_course_that_is_read_on_is_what_it_is_in_one_piece(
    most: int, client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_histories, "MAX_CACHED_STEPS", most)
    streams = [train(new(client, str(at)), 99, ends=False) for at in range(4)]
    store, kept = connect(f"sqlite:///{tmp_path / 'collector.db'}"), run_histories.RunHistoryCache()

    def read() -> list[RunHistory | None]:
        with store.reading() as connection:
            rows = [judgements.run_unlocked(connection, stream.run) for stream in streams]
        return [kept.of(store, row) for row in rows if row is not None]

    assert [99] * 4 == [row.last_step for row in read() if row]
    for stream in streams:
        stream.say("values.logged", 99, val_loss=1.5)
        train(stream, 159, 100, row=worse)
    for stream, told in zip(streams, read(), strict=True):
        assert told
        assert (159, 160, True) == (told.last_step, len(told.curve("loss")), told.over)
        assert [19, 39, 59, 79, 99, 119, 139, 159] == told.curve("val_loss").steps.tolist()
        assert 1.5 == told.curve("val_loss").values[4]
        assert stream.name == told.name
    store.close()


def test_only_an_earlier_run_of_the_same_project_is_a_baseline_by_name(client: httpx.Client) -> None:
    train(new(client, "base", project="another"))
    run = train(new(client, "half", config={**CONFIG, "baseline": "base"}), dtype="bfloat16", row=worse)
    wait_until(lambda: client.get(f"/api/v1/runs/{run.run}").json()["state"] == "ended")
    assert {} == incidents(client, run)


def test_of_several_runs_of_that_name_the_newest_counts(client: httpx.Client) -> None:
    for age, config in ((900, {**CONFIG, "lr": 1.0}), (700, CONFIG)):
        train(new(client, "base", config, age))
    run = train(new(client, "half", config={**CONFIG, "baseline": "base"}), dtype="bfloat16", row=worse)
    wait_until(lambda: "validation-drift" in incidents(client, run))
    assert "not-comparable" not in incidents(client, run)
