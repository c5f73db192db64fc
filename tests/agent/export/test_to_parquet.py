"""A run as a Parquet file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.export.conftest import LongRun
from tests.agent.export.exporting import STEPS, assert_same, export, recorded
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm
from tests.parts import library

INDEX = ["step", "time", "rank", "host", "stream"]


@pytest.fixture
def parquet() -> Any:
    return library("pyarrow.parquet")


def test_ten_thousand_steps_arrive_complete_and_with_identical_values(
    parquet: Any, long: LongRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = export(capsys, long.path, "--to", "parquet", tmp_path / "run.parquet")
    table = parquet.read_table(tmp_path / "run.parquet")
    lines = table.select([name for name in table.column_names if name not in INDEX]).to_pylist()
    places = zip(table["stream"].to_pylist(), table["step"].to_pylist(), strict=True)
    rows = {
        place: {name: value for name, value in line.items() if value is not None}
        for place, line in zip(places, lines, strict=True)
    }
    assert_same(long.rows, rows)
    assert (STEPS, long.values) == (written["rows"], written["values"])
    assert long.times == table["time"].cast("int64").to_pylist()
    assert ({0}, {"node7"}) == (set(table["rank"].to_pylist()), set(table["host"].to_pylist()))
    assert {"float"} == {str(field.type) for field in table.schema if field.name not in INDEX}


def test_the_file_says_which_run_it_is_and_what_its_columns_mean(
    parquet: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(warm(20), tmp_path, name="fp16", project="lm", config={"lr": 0.1})
    export(capsys, tmp_path / RUN, "--to", "parquet", tmp_path / "run.parquet")
    schema = parquet.read_schema(tmp_path / "run.parquet")
    assert (RUN, "fp16", "lm") == tuple(
        schema.metadata[f"ammeter.{name}".encode()].decode() for name in ("run", "name", "project")
    )
    assert {"lr": 0.1} == json.loads(schema.metadata[b"ammeter.config"])
    assert b"L2 norm of the gradient, unscaled" == schema.field("grad.norm/head.weight").metadata[b"meaning"]
