from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from ammeter.counters import epoch_times
from ammeter.counters.stream import advance
from ammeter.wire.columns import view
from ammeter.wire.frames import Event, Schema, Steps
from ammeter_server.config import prices
from ammeter_server.config.settings import SettingsError, from_environment
from ammeter_server.runs import cost
from tests.server.feeding import STEP, Stream, serving, train, wait_until
from tests.server.ops.test_metrics import scrape

SECOND = 10**9
HOUR = 3600 * SECOND
PRICES = (("NVIDIA H200", 4.0), ("NVIDIA A100*", 2.0), ("*", 1.0))


def rank(started: int, stepped: int | None, **said: Any) -> Any:
    given: dict[str, Any] = {"rank": 0, "bye_reason": None, "bye": {}, "counters": {}}
    return SimpleNamespace(started=started, last_step_time=stepped, **(given | said))


def test_the_first_price_that_fits_the_model_counts() -> None:
    known = from_environment(
        environment={"AMMETER_SERVER_COST_PER_HOUR": "NVIDIA H200=4.10, NVIDIA A100*=2.00,NVIDIA*=1"}
    ).cost_per_hour
    models = ("NVIDIA H200", "nvidia a100-SXM4-80GB", "NVIDIA L4", "x86_64", None)
    assert [4.1, 2.0, 1.0, None, None] == [prices.of(known, model) for model in models]


@pytest.mark.parametrize(
    "setting", ["4.10", "NVIDIA H200=", "=4", "NVIDIA H200=much", "*=-1", "*=nan", "*=1e9", "[tier=spot]=4"]
)
def test_a_price_that_is_none_is_refused_by_name_and_remedy(setting: str) -> None:
    with pytest.raises(SettingsError, match=r"AMMETER_SERVER_COST_PER_HOUR is .*use a model, = and dollars") as wrong:
        from_environment(environment={"AMMETER_SERVER_COST_PER_HOUR": setting})
    assert repr(setting) in str(wrong.value)


def test_a_price_behind_a_tag_is_for_runs_with_that_tag() -> None:
    known = prices.read("NVIDIA H200[tier=spot*]=1.50, NVIDIA H200=4.10, *[cloud=lab]=0")
    assert [1.5, 1.5, 4.1, 0.0, None, None] == [
        prices.of(known, "NVIDIA H200", {"tier": "spot"}),
        prices.of(known, "nvidia h200", {"tier": "spot-eu"}),
        prices.of(known, "NVIDIA H200", {"tier": "on-demand", "cloud": "lab"}),
        prices.of(known, "NVIDIA L4", {"cloud": "lab"}),
        prices.of(known, "NVIDIA L4", {"tier": "spot"}),
        prices.of(known, "NVIDIA L4"),
    ]


def life(stream: str, first: int, last: int, replaced: int | None) -> Any:
    return SimpleNamespace(stream=stream, first_step=first, last_step=last, replaced_from=replaced)


def test_repeated_steps_cost_their_share_of_the_time_of_their_attempt_on_every_rank() -> None:
    ranks = [rank(HOUR, 2 * HOUR, id="a"), rank(3 * HOUR, 5 * HOUR, id="b"), rank(HOUR, 2 * HOUR, rank=1, id="c")]
    lives = [life("a", 0, 99, 60), life("b", 60, 140, None), life("elsewhere", 0, 9, 5)]
    assert 40 + 5 == cost.replaced_steps(lives)
    on = {"device": "NVIDIA H200"}
    assert 2 * 4.0 * 0.4 == pytest.approx(cost.of_replaced_steps(PRICES, on, ranks, lives))
    assert cost.of_replaced_steps((), on, ranks, lives) is None
    assert 0.0 == cost.of_replaced_steps(PRICES, on, ranks, [])
    assert [0, 100] == [cost.replaced_steps([life("a", 50, 149, begin)]) for begin in (150, 0)]


def test_a_run_costs_the_time_of_its_ranks_by_their_own_clocks() -> None:
    on = {"device": "NVIDIA H200"}
    ended = rank(10 * HOUR, 11 * HOUR, rank=1, bye_reason="closed", bye={"time": 12 * HOUR})
    died = rank(10 * HOUR, 11 * HOUR, rank=2, bye_reason="lost", bye={"time": 90 * HOUR})
    silent = rank(10 * HOUR, None, rank=3)
    assert 4.0 * (2 + 2 + 1) == cost.of_run(PRICES, on, [rank(10 * HOUR, 12 * HOUR), ended, died, silent])
    assert cost.of_run((), on, [ended]) is None
    assert 1.0 * 2 == cost.of_run(PRICES, {"device": "x86_64"}, [ended])


def epochs(*cuts: int, first: float = 0.0) -> dict[str, Any]:
    """The counters after 40 steps of a second each, ten in an epoch, cut there."""
    schema = Schema(scalars=("epoch", "step_seconds"))
    rows = [Steps(step, (100 + step) * SECOND, _floats(first + step // 10, 1.0)) for step in range(40)]
    counters: dict[str, Any] = {}
    for begin, end in zip((0, *cuts), (*cuts, len(rows)), strict=True):
        counters = advance(counters, view(schema, rows[begin:end]))
    return counters


def _floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


@pytest.mark.parametrize("first", [0.0, 1.0])
@pytest.mark.parametrize("cuts", [(), (7,), (10, 11, 30)])
def test_an_epoch_lasts_from_its_first_number_to_the_next_whatever_they_count_from(
    first: float, cuts: tuple[int, ...]
) -> None:
    assert 10.0 == epoch_times.seconds(epochs(*cuts, first=first))


def test_an_epoch_that_is_logged_late_or_in_parts_counts_as_well() -> None:
    logged = [(0, Event("values.logged", step, step * SECOND, {"epoch": step / 50})) for step in (10, 20, 35)]
    assert 50.0 == pytest.approx(epoch_times.seconds(advance({}, view(Schema(), (), logged))))


def test_without_two_epochs_the_configs_steps_per_epoch_tell_how_long_one_is() -> None:
    assert 2.0 * 100 == epoch_times.seconds({"steps_per_epoch": 100, "steps": 50, "step_seconds": 100.0})
    assert epoch_times.seconds({"epochs": [0.0, 1, 0.0, 1], "steps": 50, "step_seconds": 100.0}) is None
    assert epoch_times.seconds({}) is None


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path, cost_per_hour=PRICES) as client:
        yield client


def test_a_runs_cost_is_told_by_run_by_epoch_and_for_the_fleet(client: httpx.Client) -> None:
    begin = time.time_ns() - 2 * HOUR
    streams = [Stream(client, world_size=2, begin=begin, config={"steps_per_epoch": 36_000})]
    streams.append(Stream(client, run=streams[0].run, rank=1, world_size=2, begin=begin))
    for stream in streams:
        train(stream, 0, 20)
        stream.bye(HOUR // STEP)
        stream.send()
    run = f"/api/v1/runs/{streams[0].run}"
    wait_until(lambda: client.get(run).json()["state"] == "ended")
    dollars, per_epoch = 2 * 4.0, 2 * 4.0 * 36_000 * 0.1 / 3600
    answer = client.get(run).json()
    assert (dollars, pytest.approx(per_epoch)) == (answer["cost_dollars"], answer["cost_per_epoch_dollars"])
    shown = scrape(client)
    assert dollars == shown['ammeter_fleet_cost_dollars_total{project="demo"}']


def test_a_live_run_has_its_cost_on_metrics(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - HOUR, config={"steps_per_epoch": 36_000})
    train(stream, 0, 20)
    stream.send()
    shown = scrape(client)
    labels = f'{{run="{stream.run}"}}'
    assert 4.0 * 2 / 3600 == pytest.approx(shown[f"ammeter_run_cost_dollars{labels}"])
    assert 4.0 == pytest.approx(shown[f"ammeter_cost_per_epoch_dollars{labels}"])


def test_the_size_of_the_data_set_tells_how_long_an_epoch_is_where_nothing_else_does() -> None:
    counters = {"samples_per_epoch": 6000.0, "samples": 300.0, "steps": 10, "step_seconds": 5.0}
    assert 100.0 == epoch_times.seconds(counters)
    assert 50.0 == epoch_times.seconds({**counters, "steps_per_epoch": 100})
    hello = Stream(None, config={"dataset_size": 12_000}, world_size=2).hello()  # type: ignore[arg-type]
    assert 6000.0 == advance({}, view(Schema(), (), [(0, hello)]))["samples_per_epoch"]


def test_seconds_per_epoch_stand_in_the_api_and_on_metrics_without_any_price(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - HOUR, config={"steps_per_epoch": 36_000})
    for step in range(20):
        stream.tell(step, {"step_seconds": 0.1})
    stream.send()
    assert pytest.approx(3600) == client.get(f"/api/v1/runs/{stream.run}").json()["seconds_per_epoch"]
    wait_until(lambda: f'ammeter_epoch_duration_seconds{{run="{stream.run}"}}' in scrape(client))
