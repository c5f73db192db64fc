from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ammeter_server.__main__ import main
from ammeter_server.cli.storage import measured
from ammeter_server.db import Store
from ammeter_server.maintenance.compaction import compact
from tests.server.keeping import SCHEMA, Fed, database, numbers


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with database(request.param, tmp_path) as store:
        yield store


def fill(store: Store) -> tuple[Fed, Fed]:
    """A run of 5,000 steps, of which 4,500 are compacted, and a small one."""
    large, small = Fed(store), Fed(store)
    large.feed(numbers(SCHEMA, 5000), 500)
    compact(store, large.run, large.stream, "me")
    small.feed(numbers(SCHEMA, 10), 10)
    return large, small


def test_tables_days_and_runs_say_what_they_take(store: Store) -> None:
    large, small = fill(store)
    found = measured(store)
    assert {"in_blocks": 510, "in_segments": 4500} == found["steps"]
    tables = {table["name"]: table for table in found["tables"]}
    assert (2, 1, 2) == tuple(tables[name]["rows"] for name in ("columns", "segments", "chunks"))
    assert 4500 * 8 < tables["columns"]["bytes"] < 4500 * SCHEMA.width * 4
    assert [table["bytes"] for table in found["tables"]] == sorted((t["bytes"] for t in found["tables"]), reverse=True)
    assert [f"{large.run} nightly", f"{small.run} nightly"] == [run["run"] for run in found["runs"]]
    assert [5000, 10] == [run["steps"] for run in found["runs"]]
    today = datetime.fromtimestamp(time.time(), UTC).date().isoformat()
    assert [today] == [day["day"] for day in found["days"]]
    of_days = sum(tables[name]["bytes"] for name in ("chunks", "segments", "columns", "events"))
    assert of_days == sum(entry["bytes"] for entry in found["days"]) == sum(entry["bytes"] for entry in found["runs"])
    assert found["database_bytes"] > of_days


def test_the_command_prints_it_for_people_and_for_programs(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    large, _ = fill(store)
    words = ["storage", "--database-url", store.engine.url.render_as_string(hide_password=False)]
    words[-1] = words[-1].replace("postgresql+psycopg", "postgresql")
    assert 0 == main(words)
    printed = capsys.readouterr().out
    assert "4,500 steps of all ranks compacted, 510 not compacted yet" in printed
    assert "KiB" in next(line for line in printed.splitlines() if line.startswith(large.run))
    assert 0 == main([*words, "--json"])
    assert 4500 == json.loads(capsys.readouterr().out)["steps"]["in_segments"]


def test_an_empty_database_says_so(store: Store) -> None:
    found = measured(store)
    assert ([], [], {"in_blocks": 0, "in_segments": 0}) == (found["runs"], found["days"], found["steps"])
