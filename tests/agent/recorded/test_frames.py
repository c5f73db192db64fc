"""ammeter.load(): a recorded run as frames of pandas and polars, with its findings."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ammeter
from ammeter.__main__ import main
from ammeter.recorded import LoadedRun
from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import STEPS, Rows, assert_same, narrow, recorded
from tests.agent.report.reporting import RUN, written
from tests.agent.stream_builder import SECOND, Stream, mistaken, warm
from tests.parts import library

LIBRARIES = ("pandas", "polars")
INDEX = ["step", "time", "rank", "host", "stream"]


def columns(frame: Any, to: str) -> dict[str, list[Any]]:
    """The columns of a frame as Python values; absent ones are None."""
    if to == "polars":
        found: dict[str, list[Any]] = frame.to_dict(as_series=False)
        return found
    return {
        name: [None if isinstance(value, float) and math.isnan(value) else value for value in frame[name].tolist()]
        for name in frame.columns
    }


def frames(run: LoadedRun, to: str) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    library(to)
    return columns(run.steps(to=to), to), columns(run.tensors(to=to), to)  # type: ignore[arg-type]


def rows_of(steps: dict[str, list[Any]], tensors: dict[str, list[Any]]) -> Rows:
    rows: Rows = {}
    for at, key in enumerate(zip(steps["stream"], steps["step"], strict=True)):
        rows[key] = {name: values[at] for name, values in steps.items() if name not in INDEX and values[at] is not None}
    names = (tensors["statistic"], tensors["tensor"], tensors["value"])
    for stream, step, statistic, tensor, value in zip(tensors["stream"], tensors["step"], *names, strict=True):
        rows[stream, step][f"{statistic}/{tensor}"] = math.nan if value is None else value
    return rows


def without_nan(rows: Rows, tensors_too: bool) -> Rows:
    """The rows without scalars that are NaN, which pandas does not tell from absent ones."""
    return {
        key: {name: value for name, value in values.items() if not math.isnan(value) or (tensors_too and "/" in name)}
        for key, values in rows.items()
    }


@pytest.mark.parametrize("to", LIBRARIES)
def test_ten_thousand_steps_arrive_complete_and_with_identical_values(to: str, long: LongRun) -> None:
    run = ammeter.load(long.path)
    steps, tensors = frames(run, to)
    assert STEPS == len(steps["step"])
    wanted = without_nan(long.rows, tensors_too=True) if to == "pandas" else long.rows
    found = rows_of(steps, tensors)
    assert_same({key: dict(sorted(values.items())) for key, values in wanted.items()}, found)


@pytest.mark.parametrize("to", LIBRARIES)
def test_a_time_is_exact_to_the_nanosecond(to: str, long: LongRun) -> None:
    library(to)
    time = ammeter.load(long.path).steps(to=to)["time"]  # type: ignore[arg-type]
    assert long.times == (time.astype("int64") if to == "pandas" else time.dt.epoch("ns")).to_list()


def test_polars_tells_a_measured_nan_from_an_absent_value(tmp_path: Path) -> None:
    library("polars")
    recorded(Stream().good(loss=math.nan).step(applied=1).good(loss=1.0), tmp_path)
    loss = ammeter.load(tmp_path / RUN).steps(to="polars")["loss"]
    assert ([False, True, False], [True, None, False]) == (loss.is_null().to_list(), loss.is_nan().to_list())


@pytest.mark.parametrize("to", LIBRARIES)
def test_ranks_and_attempts_stand_below_each_other_and_devices_are_left_out(to: str, tmp_path: Path) -> None:
    library(to)
    for place in ({"rank": 1, "started": 5}, {"started": 9}, {"started": 4}, {"role": "host", "host": "node9"}):
        recorded(narrow("w").good().good(), tmp_path, **place)
    steps = columns(ammeter.load(tmp_path / RUN).steps(to=to), to)  # type: ignore[arg-type]
    assert [0, 1, 0, 1, 0, 1] == steps["step"]
    assert [0, 0, 0, 0, 1, 1] == steps["rank"]
    assert (3, {"node7"}) == (len(set(steps["stream"])), set(steps["host"]))


@pytest.mark.parametrize("to", LIBRARIES)
def test_two_tensors_of_one_name_stay_apart_and_one_statistic_can_be_chosen(to: str, tmp_path: Path) -> None:
    library(to)
    stream = narrow("w", "w").good(stats={"grad.norm": [1.0, 2.0]}, full=False)
    stream.step(stats={"weight.norm": [3.0, 4.0]})
    recorded(stream, tmp_path)
    run = ammeter.load(tmp_path / RUN)
    tensors = columns(run.tensors(to=to), to)  # type: ignore[arg-type]
    assert ["w", "w#2", "w", "w#2"] == tensors["tensor"]
    assert ([0, 0, 1, 1], [1.0, 2.0, 3.0, 4.0]) == (tensors["step"], tensors["value"])
    chosen = columns(run.tensors("weight.norm", to=to), to)  # type: ignore[arg-type]
    assert ([3.0, 4.0], ["weight.norm"] * 2) == (chosen["value"], chosen["statistic"])
    assert [] == columns(run.tensors("grad.zeros", to=to), to)["value"]  # type: ignore[arg-type]


@pytest.mark.parametrize("to", LIBRARIES)
def test_events_have_their_sentence_and_their_data(to: str, tmp_path: Path) -> None:
    library(to)
    recorded(warm(3).event("scaler.growth", **{"from": 1.0, "to": math.inf}), tmp_path)
    events = columns(ammeter.load(tmp_path / RUN).events(to=to), to)  # type: ignore[arg-type]
    assert ["autocast.entered", "scaler.seen", "scaler.growth"] == events["name"]
    assert {"from": 1.0, "to": "Infinity"} == json.loads(events["data"][-1])
    assert 2 == events["step"][-1]


def test_the_findings_are_those_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(mistaken("loss_not_scaled", scale=65536.0).bye(), tmp_path, name="fp16", config={"lr": 0.1})
    run = ammeter.load("fp16", dir=tmp_path)
    assert ["loss-not-scaled"] == [reported.finding.verdict for reported in run.findings]
    main(["report", str(run.path)])
    assert capsys.readouterr().out.rstrip() == str(run.report()).rstrip()
    assert (RUN, "fp16", "default", {"lr": 0.1}) == (run.id, run.name, run.project, run.config)
    assert "fp16" in run._repr_html_()


def test_a_run_is_found_by_the_beginning_of_its_id_or_name(tmp_path: Path) -> None:
    for run, name in (("aa1", "bert-a"), ("ab2", "bert-b"), ("ac3", "bert-b")):
        written(warm(3), tmp_path, run=run, name=name, started=SECOND)
    assert "ab2" == ammeter.load("ab", tmp_path).id
    assert "aa1" == ammeter.load("bert-a", tmp_path).id
    with pytest.raises(ValueError, match=r"3 runs in .* begin with 'bert': bert-a \(aa1\), .*; write more of one"):
        ammeter.load("bert", tmp_path)
    with pytest.raises(ValueError, match="there is no run 'gpt' in"):
        ammeter.load("gpt", tmp_path)


@pytest.mark.parametrize(("to", "other"), [LIBRARIES, LIBRARIES[::-1]])
def test_a_missing_library_is_named_with_the_remedy(
    to: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(warm(3), tmp_path)
    monkeypatch.setitem(sys.modules, to, None)
    with pytest.raises(ImportError, match=f"install it with: pip install {to}, or use to='{other}'"):
        ammeter.load(tmp_path / RUN).steps(to=to)  # type: ignore[arg-type]


def test_an_unknown_library_is_refused(tmp_path: Path) -> None:
    recorded(warm(3), tmp_path)
    with pytest.raises(ValueError, match="to is 'excel'; use one of pandas, polars"):
        ammeter.load(tmp_path / RUN).steps(to="excel")  # type: ignore[arg-type]


def test_pandas_has_the_dtypes_of_the_values(tmp_path: Path) -> None:
    library("pandas")
    recorded(warm(3), tmp_path)
    steps = ammeter.load(tmp_path / RUN).steps()
    assert (np.float32, np.int64, np.int32) == (steps["loss"].dtype, steps["step"].dtype, steps["rank"].dtype)
    assert ["category"] * 2 == [str(steps[name].dtype) for name in ("host", "stream")]
