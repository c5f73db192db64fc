"""The text of /metrics is what Prometheus' own library would write of the same samples, byte for byte."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_of_open
from prometheus_client.parser import text_string_to_metric_families as families_of_text
from prometheus_client.utils import floatToGoString

from ammeter.wire.frames import Lost
from ammeter_server.prometheus.exposition import Exposition, text
from ammeter_server.prometheus.metrics import METRICS
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until

OPEN = "application/openmetrics-text; version=1.0.0"


class Parsed:
    """Families as a registry gives them."""

    def __init__(self, families: Any) -> None:
        self.families = list(families)

    def collect(self) -> Iterator[Any]:
        yield from self.families


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Runs of every kind: one that trains, one that broke, one of two ranks, one that ended, one with odd names."""
    with serving(tmp_path_factory.mktemp("exposition")) as client:
        begin = time.time_ns() - 60 * STEP
        healthy, broken, ended, odd = (Stream(client, begin=begin + number) for number in range(4))
        ranks = [Stream(client, run=healthy.run, rank=rank, world_size=2, begin=begin) for rank in (0, 1)]
        odd.project = 'a"b\\c\nd{}é'
        for stream in (*ranks, broken, ended, odd):
            train(stream, 0, 40 + stream.rank)
        break_down(broken, 41, 50)
        ended.bye(40)
        for stream in (*ranks, ended, odd):
            stream.send()
        broken.send(gaps=[Lost(f"reason {number}", steps=1, begin=number, end=number + 1) for number in range(30)])
        wait_until(lambda: "ammeter_incident_active" in client.get("/metrics").text)
        wait_until(lambda: "ammeter_fleet_runs_total" in client.get("/metrics").text)
        yield client


def test_the_text_is_as_the_library_writes_it(client: httpx.Client) -> None:
    response = client.get("/metrics").content
    assert response.count(b"\n") > 300
    assert generate_latest(Parsed(families_of_text(response.decode()))).decode() == response.decode()


def test_openmetrics_is_as_the_library_writes_it(client: httpx.Client) -> None:
    response = client.get("/metrics", headers={"Accept": OPEN}).text
    assert response.endswith("# EOF\n")
    parsed = Parsed(families_of_open(response))  # type: ignore[no-untyped-call]
    assert generate_open(parsed).decode() == response  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("path", ["/metrics", "/metrics/self"])
def test_a_strict_parser_takes_it_as_openmetrics(client: httpx.Client, path: str) -> None:
    """It refuses a family twice, a histogram without a sum, a counter without _total, what stands behind EOF."""
    answer = client.get(path, headers={"Accept": OPEN})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = list(families_of_open(answer.text))  # type: ignore[no-untyped-call]
    names = [family.name for family in families]
    assert len(names) == len(set(names)) > 10
    for family in families:
        samples = [sample.name for sample in family.samples]
        if family.type == "histogram":
            counts, sums = (samples.count(f"{family.name}_{part}") for part in ("count", "sum"))
            assert counts == sums > 0, family.name
        if family.type == "counter":
            assert {f"{family.name}_total"} == set(samples) or not samples
    plain = client.get(path)
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# EOF" not in plain.text


def test_a_histogram_has_the_sum_of_what_it_counted(client: httpx.Client) -> None:
    families = families_of_text(client.get("/metrics").text)
    (norms,) = (family for family in families if family.name == "ammeter_grad_norm")
    found: dict[str, dict[str, float]] = {}
    for sample in norms.samples:
        if sample.name.endswith(("_sum", "_count")):
            found.setdefault(sample.labels["run"], {})[sample.name.rpartition("_")[2]] = sample.value
    assert len(found) > 3
    assert all(histogram["sum"] > 0 and histogram["count"] > 0 for histogram in found.values())


def test_both_say_the_same_samples(client: httpx.Client) -> None:
    one, other = (client.get("/metrics", headers={"Accept": accept}).text for accept in ("text/plain", OPEN))
    samples = [[line for line in told.splitlines() if not line.startswith("#")] for told in (one, other)]
    assert samples[0] == samples[1]


def test_the_answer_says_how_long_it_is(client: httpx.Client) -> None:
    answer = client.get("/metrics")
    assert len(answer.content) == int(answer.headers["content-length"])


@pytest.mark.parametrize(
    "number",
    [0, 1, -1, 0.1, 1e-9, 5e-324, 41, 999_999, 999_999.5, 10**6, 1234567.25, 65536.0, 2**53, 1.79e18, 1e22, -1e7, True],
)
def test_numbers_are_as_the_library_writes_them(number: float) -> None:
    shown = Exposition()
    shown.add("ammeter_last_loss", number, "a")
    (text_of_metric,) = text([shown.samples], False)
    expected = floatToGoString(number)  # type: ignore[no-untyped-call]
    assert f'ammeter_last_loss{{run="a"}} {expected}' == text_of_metric.decode().splitlines()[-1]


@pytest.mark.parametrize("number", [None, math.nan, math.inf, -math.inf, "NaN", "Infinity"])
def test_what_is_no_finite_number_is_left_out(number: Any) -> None:
    shown = Exposition()
    shown.add("ammeter_last_loss", number, "a")
    assert [] == list(text([shown.samples], False))


def test_metrics_stand_in_the_order_of_the_list_with_the_lines_of_all_together() -> None:
    first, second = Exposition(), Exposition()
    for name, shown in (("a", first), ("b", second)):
        shown.add("ammeter_run_step", 1, name)
        shown.add("ammeter_run_state", 1, name, "running")
    said = b"".join(text([first.samples, second.samples], False)).decode().splitlines()
    samples = [line.partition(" ")[0] for line in said if not line.startswith("#")]
    step, state = "ammeter_run_step", "ammeter_run_state"
    assert [f'{state}{{run="{run}",state="running"}}' for run in "ab"] + [
        f'{step}{{run="{run}"}}' for run in "ab"
    ] == samples
    assert [metric.name for metric in METRICS if metric.name in (step, state)] == [state, step]
