"""bench/collector at tiny sizes: what it sends, counts and writes; no number is judged here."""

from __future__ import annotations

import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.collector import __main__ as collector
from bench.collector import ingest as collector_feeding
from bench.collector import peers as collector_peers
from bench.collector import report as collector_tables
from bench.collector import servers as collector_parts
from bench.collector import soak as collector_soak
from bench.collector.__main__ import Plan
from bench.collector.ingest import Fed
from bench.collector.queries import ALONE, MEANWHILE, Asked
from bench.collector.report import Measured, Taken
from bench.collector.servers import MissingError
from bench.collector.soak import Soaked
from bench.collector.synthetic_run import WHOLE, run_of
from bench.common import readme

TINY = Plan(2, ((10, 20), (1, 2)), ((10, 20),), 20, 1, 2000, 3, 2, 3)


def test_the_ranks_have_1200_columns_which_are_measured_in_every_step() -> None:
    assert 1200 == WHOLE.width
    ranks = run_of(2, 50, time.time_ns())
    assert all(np.isfinite(rank.view.values).all() for rank in ranks)
    assert not np.array_equal(ranks[0].view.values, ranks[1].view.values)


def test_remote_write_says_each_value_with_its_time_and_labels() -> None:
    (rank,) = run_of(1, 3, 1_790_000_000 * 10**9)
    found = [series(each) for number, each in fields(next(collector_peers._requests(rank, 2, 3))) if number == 1]
    assert 1200 == len(found)
    place = WHOLE.scalars.index("loss")
    labels, samples = found[place]
    assert {"__name__": "loss", "rank": "0", "run": rank.run} == labels
    expected = zip(rank.view.values[place, :2].tolist(), (rank.view.times[:2] // 10**6).tolist(), strict=True)
    assert list(expected) == samples
    assert {"grad_norm", "embed.weight"} <= {label for labels, _ in found for label in labels.values()}


def series(message: bytes) -> tuple[dict[str, str], list[tuple[float, int]]]:
    """Labels and samples of a TimeSeries."""
    parts = list(fields(message))
    pairs = [[text.decode() for _, text in fields(part)] for number, part in parts if number == 1]
    samples = [dict(fields(part)) for number, part in parts if number == 2]
    return dict(pairs), [(struct.unpack("<d", each[1])[0], each[2]) for each in samples]


def fields(message: bytes) -> Any:
    """(number, content) of each field of a protobuf message: varints, doubles as bytes, and what has a length."""
    at = 0
    while at < len(message):
        number, kind = message[at] >> 3, message[at] & 7
        if kind == 1:
            content, at = message[at + 1 : at + 9], at + 9
            yield number, content
            continue
        value, at = varint(message, at + 1)
        if kind == 0:
            yield number, value
        else:
            yield number, message[at : at + value]
            at += value


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = message[at], at + 1
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def test_a_row_per_sample_is_as_many_rows_as_values(tmp_path: Path) -> None:
    (rank,) = run_of(1, 4, time.time_ns())
    fed = collector_peers.row_per_sample(tmp_path, rank, 2, 4)
    assert (4 * 1200, 2) == (fed.values, fed.requests)
    assert fed.stored > fed.values


def test_what_is_measured_is_written_as_tables_and_json_and_the_first_table_is_the_readmes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_feeding, "SETTLED", 0.1)
    monkeypatch.setattr(collector_feeding, "LONGEST", 0.0)
    monkeypatch.setattr(collector_parts, "_program", missing)
    measured = collector.measure(TINY, ["ammeter", "victoria", "prometheus"])
    assert ["victoria-metrics: there is none", "prometheus: there is none"] == measured.missing
    assert [("ammeter", 10, 2 * 20 * 1200), ("ammeter", 1, 2 * 2 * 1200)] == [
        (each.fed.name, each.rows, each.fed.values) for each in measured.taken
    ]
    collector_tables.write(measured, tmp_path, "make bench-collector")
    assert 4 == len(readme.table(tmp_path / "collector.md").splitlines())
    text = (tmp_path / "collector.md").read_text()
    for what in ("200 columns over 20 steps", "one column over 2,000 steps", "/metrics with 2 live runs"):
        assert f"| {what} |" in text
    assert [10, 1] == [each["rows"] for each in json.loads((tmp_path / "collector.json").read_text())["taken"]]


def missing(name: str) -> str:
    raise MissingError("there is none")


def test_a_limit_that_is_missed_is_told() -> None:
    fed = Fed("ammeter", 30_000_000, 1, 1.0, 1.0, 1.0, 1, 1, 1)
    measured = Measured([Taken(100, fed), Taken(1, replace(fed, values=999_999))])
    assert [True, False] == [each.holds for each in collector_tables.limits(measured)]
    measured.taken.append(Taken(100, replace(fed, name="victoria-metrics", values=6_100_000)))
    *_, times = collector_tables.limits(measured)
    assert "times VictoriaMetrics' remote write: 4.92, at least 5: missed" == times.told


def test_answers_that_take_too_long_and_batches_that_are_held_up_are_told() -> None:
    fed = Fed("ammeter", 30_000_000, 1, 1.0, 1.0, 1.0, 1, 1, 1)
    took = {collector_tables.LIST: 51.0, collector_tables.SCRAPE: 299.0, ALONE: 5.0, MEANWHILE: 26.0}
    asked = [Asked(what, "ammeter", 1.0, p95, 900.0, 1) for what, p95 in took.items()]
    found = collector_tables.limits(Measured([Taken(100, fed)], asked))[2:]
    assert [False, True, False] == [each.holds for each in found]
    assert "ms that scrapes hold up a batch, of 95 in 100: 21.00, at most 20: missed" == found[-1].told


def test_live_streams_are_followed_without_error(tmp_path: Path) -> None:
    part = collector_parts.collector(tmp_path)
    try:
        found = collector_soak.soak(part, 5.5, runs=2, ranks=2)
    finally:
        part.stop()
    assert [] == found.errors
    assert 4 == found.streams
    assert found.values >= 4 * 2 * 10 * 1200
    assert found.behind
    assert "4 live streams of 1,200 columns" in found.words[0]


def test_a_soak_is_held_against_its_errors_what_is_behind_and_memory() -> None:
    good = Soaked(200, 600.0, 1, 1.0, [], [0.5, 2.9], [100, 120, 119, 122, 120, 121])
    assert good.holds
    for broken in (
        replace(good, errors=["ConnectionError"]),
        replace(good, behind=[3.1, 0.1]),
        replace(good, resident=[100, 120, 122, 126, 130, 134]),
        replace(good, sent=0.9),
    ):
        assert not broken.holds


def test_quick_numbers_are_not_kept_among_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        collector.main(["--quick", "--write"])
    assert "name another folder" in capsys.readouterr().err
