"""The report says what watching cost so that a short run gives no wrong idea of a long one, and what was sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.__main__ import main
from ammeter.journal import Journal, find
from ammeter.report import diagnosis, overhead, run_summary
from ammeter.report.stream_summary import StreamSummary
from ammeter.wire.columns import View
from ammeter.wire.frames import Hello
from tests.agent.stream_builder import Stream
from tests.agent.training import Recipe, stream, train

START = 0.02
"""Seconds that tests let a start last, for tests are short."""


def trained(folder: Path, steps: int, precision: str = "fp16", **options: Any) -> View:
    """The rows of a real run of so many short steps."""
    outcome = train(Recipe(precision=precision, steps=steps), watched=True, dir=folder, **options)
    return stream(outcome.run, folder)[0]


def written(rows: Stream, folder: Path) -> None:
    writer = Journal(folder / "5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d11" / "0123456789abcdef0123456789abcdef")
    for frame in rows.frames:
        if isinstance(frame, Hello):
            writer.hello(frame)
        else:
            writer.append(frame)
    writer.close()


def summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    main(["report", str(folder), "--json"])
    return json.loads(capsys.readouterr().out)["summary"]


def text(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    main(["report", str(folder)])
    return " ".join(capsys.readouterr().out.split())


def costs(rows: View, since: int = 0, to: int | None = None) -> float:
    return float(np.sum(rows.scalar("overhead_seconds")[since:to], dtype=np.float64))


def seconds(rows: View, since: int = 1) -> float:
    return float(np.sum(rows.scalar("step_seconds")[since:], dtype=np.float64))


def test_a_short_run_says_what_its_start_cost_and_no_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "START_SECONDS", 3600.0)  # on a busy machine 100 steps take longer than a second
    rows = trained(tmp_path, 100)
    figures = summary(tmp_path, capsys)
    assert figures["overhead_settled_ratio"] is None
    assert pytest.approx(costs(rows), abs=1e-5) == figures["overhead_start_seconds"]
    assert 100 == figures["overhead_start_steps"]
    output = text(tmp_path, capsys)
    start = f"overhead {figures['overhead_start_seconds']:.2g} s for the start, 100 steps with more readings"
    assert f"{start}; too few steps for the overhead of a settled step" in output


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_behind_the_start_the_share_is_that_of_the_settled_steps_alone(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "START_SECONDS", START)
    rows = trained(tmp_path, 260, precision)
    figures = summary(tmp_path, capsys)
    start = figures["overhead_start_steps"]
    assert 64 <= start <= 196
    assert pytest.approx(costs(rows, 0, start), abs=1e-5) == figures["overhead_start_seconds"]
    assert pytest.approx(costs(rows, start) / seconds(rows, start), rel=1e-3) == figures["overhead_settled_ratio"]
    assert 0 < figures["overhead_settled_ratio"] < 1
    output = text(tmp_path, capsys)
    assert f"of the time of settled steps; the start, {start} steps with more readings, took" in output


def test_a_start_lasts_64_steps_and_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Stream()
    for step in range(600):
        rows.good(seconds=2**-7, step_seconds=2**-7, overhead_seconds=2**-9 if step < 127 else 2**-13)
    written(rows.bye(), tmp_path)
    figures = summary(tmp_path, capsys)
    assert (127, 0.248047, 0.01562) == tuple(
        figures[f"overhead_{name}"] for name in ("start_steps", "start_seconds", "settled_ratio")
    )
    assert pytest.approx((127 * 2**-9 + 473 * 2**-13) / (600 * 2**-7), abs=1e-5) == figures["overhead_ratio"]
    assert "overhead 1.6 % of the time of settled steps; the start, 127 steps with more readings, took 0.25 s" in (
        text(tmp_path, capsys)
    )


def test_long_steps_are_settled_after_64_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Stream()
    for _ in range(200):
        rows.good(seconds=2.0, step_seconds=2.0, overhead_seconds=0.001)
    written(rows.bye(), tmp_path)
    figures = summary(tmp_path, capsys)
    assert (64, 0.0005) == (figures["overhead_start_steps"], figures["overhead_settled_ratio"])
    assert "overhead less than 0.1 % of the time of settled steps" in text(tmp_path, capsys)


def test_a_few_long_steps_say_the_share_that_is_small_although_the_start_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Stream()
    for _ in range(30):
        rows.good(seconds=2.0, step_seconds=2.0, overhead_seconds=0.01)
    written(rows.bye(), tmp_path)
    assert summary(tmp_path, capsys)["overhead_settled_ratio"] is None
    assert "overhead 0.3 s, 0.5 % of the run" in text(tmp_path, capsys)


def test_lives_of_a_rank_each_have_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "START_SECONDS", 3600.0)  # of both: on a busy machine steps take longer
    counted = [StreamSummary(name) for name in ("a", "b")]
    rows = [trained(tmp_path / summary.stream, 100) for summary in counted]
    for stream_summary, view in zip(counted, rows, strict=True):
        stream_summary.add(view)
    figures = run_summary.summary_of(counted)
    assert 200 == figures["overhead_start_steps"]
    assert pytest.approx(sum(costs(view) for view in rows), abs=1e-5) == figures["overhead_start_seconds"]


def test_the_cost_does_not_depend_on_how_many_rows_are_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "START_SECONDS", START)
    trained(tmp_path, 200)
    (run,) = find.find_runs(tmp_path)
    whole = diagnosis.diagnose(run).as_json()["summary"]
    assert whole["overhead_settled_ratio"] is not None
    for rows in (1, 7, 50):
        monkeypatch.setattr(find, "MAX_ROWS", rows)
        assert whole == diagnosis.diagnose(run).as_json()["summary"]


def test_where_calls_were_followed_now_and_then_it_is_said_with_what_is_read_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=16.0)
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path, budget=0.0001)
    for _ in range(200):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(3, 4)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    followed = float(rows.scalar("calls_followed").mean())
    assert 0 < followed < 1
    figures = summary(tmp_path, capsys)
    assert pytest.approx(followed, abs=1e-5) == figures["calls_followed_share"]
    output = text(tmp_path, capsys)
    assert f"The order of calls was followed in {100 * followed:.0f} % of the steps: in steps of" in output
    assert "Loss scale and skipped steps are read in every step" in output
    assert np.isfinite(rows.scalar("scale")).all()
    assert np.isfinite(rows.scalar("skipped")).all()


def test_where_all_calls_were_followed_nothing_is_said_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 80, preset="full")
    assert 1.0 == summary(tmp_path, capsys)["calls_followed_share"]
    assert "order of calls" not in text(tmp_path, capsys)


def test_almost_all_is_not_told_as_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Stream()
    for step in range(1000):
        rows.good(step_seconds=0.1, calls_followed=step > 0)
    written(rows.bye(), tmp_path)
    assert "followed in 99 % of the steps: in steps of 100 ms" in text(tmp_path, capsys)


def test_a_journal_that_says_nothing_of_calls_is_told_nothing_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(Stream().good().good().bye(), tmp_path)
    assert summary(tmp_path, capsys)["calls_followed_share"] is None
    assert "order of calls" not in text(tmp_path, capsys)
