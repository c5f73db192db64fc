from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ammeter.wire.frames import Lost
from ammeter_server.process import self_metrics
from ammeter_server.prometheus.metrics import METRICS, PROCESS_METRICS
from ammeter_server.prometheus.samples import (
    MAX_DEVICES,
    MAX_FALLBACKS,
    MAX_INCIDENTS,
    MAX_OPERATORS,
    MAX_REASONS,
    headroom,
)
from tests import parts
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until
from tests.server.hosts import Host

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
Samples = dict[str, float]

SAMPLED = {"lost_updates": 0.25, "update_ratio": 1e-3, "low_precision_share": 0.5, "val_loss": 2.5}
"""Columns that are read now and then."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path, cost_per_hour=(("*", 2.0),)) as client:
        yield client


def scrape(client: httpx.Client, path: str = "/metrics") -> Samples:
    """Every sample as 'name{label="value",...}' with the labels in order of their names."""
    samples: Samples = {}
    for family in text_string_to_metric_families(client.get(path).text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


def lint(text: str) -> None:
    command = [parts.need("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert (0, "") == (done.returncode, done.stdout + done.stderr)


def test_a_run_shows_its_counters_scale_loss_and_norm(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    stream.send()
    shown = scrape(client)
    run = f'run="{stream.run}"'
    assert 41 == shown[f'ammeter_steps_total{{outcome="applied",{run}}}']
    assert 0 == shown[f'ammeter_steps_total{{outcome="skipped",{run}}}']
    assert 65536 == shown[f"ammeter_scaler_scale{{{run}}}"]
    assert 40 == shown[f"ammeter_run_step{{{run}}}"]
    assert 1 == shown[f'ammeter_run_state{{{run},state="running"}}']
    assert 0 == shown[f'ammeter_run_state{{{run},state="lost"}}']
    assert stream.time(40) / 1e9 == pytest.approx(shown[f"ammeter_run_last_step_timestamp_seconds{{{run}}}"])
    assert 41 == shown[f"ammeter_grad_norm_count{{{run}}}"]
    assert 41 == shown[f'ammeter_grad_norm_bucket{{le="10",{run}}}']
    assert 4.1 == pytest.approx(shown[f"ammeter_step_duration_seconds_sum{{{run}}}"])
    assert 0.005 == pytest.approx(shown[f"ammeter_agent_overhead_ratio{{{run}}}"])
    unjudged = client.get(f"/api/v1/runs/{stream.run}").json()["not_judged"]
    assert len(unjudged) == shown[f"ammeter_verdicts_not_judged{{{run}}}"] > 0
    assert 24 / 1024 == pytest.approx(shown[f"ammeter_grad_underflow_ratio{{{run}}}"])
    assert math.log2(65504 / (0.02 * 65536)) == pytest.approx(shown[f"ammeter_scaler_headroom_doublings{{{run}}}"])
    assert 0 == shown[f"ammeter_nonfinite_steps_total{{{run}}}"]
    info = 'device_model="NVIDIA H200",name="nightly",precision="float16",project="demo"'
    assert 1 == shown[f'ammeter_run_info{{{info},{run},torch_version="2.13.0"}}']


def test_values_that_are_no_numbers_are_counters_and_times_never_gauges(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    break_down(stream, 41, 50)
    stream.send()
    wait_until(lambda: "ammeter_incident_active" in client.get("/metrics").text)
    shown = scrape(client)
    assert [] == [name for name, value in shown.items() if not math.isfinite(value)]
    run = f'run="{stream.run}"'
    assert f"ammeter_last_grad_norm{{{run}}}" not in shown
    assert 10 == shown[f"ammeter_nonfinite_steps_total{{{run}}}"]
    assert 10 * 3 * 1024 == shown[f'ammeter_nonfinite_values_total{{kind="nan",{run}}}']
    assert stream.time(50) / 1e9 == pytest.approx(shown[f"ammeter_last_nonfinite_timestamp_seconds{{{run}}}"])
    assert 10 == shown[f"ammeter_consecutive_skipped_steps{{{run}}}"]
    assert 10 == shown[f'ammeter_scaler_scale_changes_total{{direction="down",{run}}}']
    incident = f'project="demo",{run},severity="page",verdict="nonfinite-gradient"'
    assert 1 == shown[f"ammeter_incident_active{{{incident}}}"]
    assert 1 == shown['ammeter_incidents_total{project="demo",severity="page",verdict="nonfinite-gradient"}']


def test_checkpoints_count_as_complete_or_partial_and_the_last_complete_one_is_dated(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    run = f'run="{stream.run}"'
    train(stream, 0, 20)
    stream.send()
    shown = scrape(client)
    assert 0 == shown[f'ammeter_checkpoint_saves_total{{outcome="complete",{run}}}']
    assert f"ammeter_checkpoint_last_timestamp_seconds{{{run}}}" not in shown
    for step, missing in ((21, []), (22, []), (23, ["scaler"])):
        stream.tell(step, SAMPLED)
        stream.say("checkpoint.saved", step, path="out/run.pt", missing=missing)
    assert f'ammeter_checkpoint_restores_total{{outcome="passed",{run}}}' not in shown
    for outcome in ("passed", "passed", "failed", "partial", "skipped", "other"):
        stream.say("checkpoint.verified", 23, path="out/run.pt", outcome=outcome)
    stream.send()
    shown = scrape(client)
    restores = [
        shown[f'ammeter_checkpoint_restores_total{{outcome="{outcome}",{run}}}'] for outcome in ("passed", "failed")
    ]
    assert [2, 2] == restores
    assert 2 == shown[f'ammeter_checkpoint_saves_total{{outcome="complete",{run}}}']
    assert 1 == shown[f'ammeter_checkpoint_saves_total{{outcome="partial",{run}}}']
    assert stream.time(22) / 1e9 == pytest.approx(shown[f"ammeter_checkpoint_last_timestamp_seconds{{{run}}}"])
    names = ("lost_update_ratio", "update_to_weight_ratio", "low_precision_flops_ratio", "last_validation_loss")
    assert [*SAMPLED.values()] == pytest.approx([shown[f"ammeter_{name}{{{run}}}"] for name in names])


def test_fallbacks_of_one_operator_add_up_and_the_rank_with_most_of_them_stands_for_the_run(
    client: httpx.Client,
) -> None:
    begin = time.time_ns() - 60 * STEP
    first = Stream(client, world_size=2, begin=begin)
    second = Stream(client, run=first.run, rank=1, world_size=2, begin=begin)
    for stream, shares in ((first, (0.25, 0.125)), (second, (0.25,))):
        train(stream, 0, 9)
        for share in shares:
            stream.say("kernel.fallback", 9, op="aten.mm", reason="autocast-disabled", flops_share=share)
        stream.say("kernel.fallback", 9, op="aten.bmm", reason="policy", flops_share="most")
        stream.send()
    told = {name: value for name, value in scrape(client).items() if "kernel_fallback" in name}
    labels = f'op="aten.mm",reason="autocast-disabled",run="{first.run}"'
    assert {f"ammeter_kernel_fallback_flops_ratio{{{labels}}}": 0.375} == told


def timed(stream: Stream, step: int, *operators: tuple[str, str, object], phase: str = "forward") -> None:
    listed = [{"op": op, "dtype": dtype, "typical_seconds": seconds} for op, dtype, seconds in operators]
    stream.say("kernels.timed", step, phase=phase, steps=2, operators=listed)


def operator_times(client: httpx.Client) -> Samples:
    return {name: value for name, value in scrape(client).items() if name.startswith("ammeter_operator_seconds")}


def test_the_time_in_operators_is_that_of_the_last_counted_passes_of_the_first_rank(client: httpx.Client) -> None:
    begin = time.time_ns() - 60 * STEP
    first = Stream(client, world_size=2, begin=begin)
    second = Stream(client, run=first.run, rank=1, world_size=2, begin=begin)
    for stream in (first, second):
        train(stream, 0, 9)
    timed(first, 9, ("addmm", "bfloat16", 8.0), ("svd", "float32", 9.0))
    timed(first, 9, ("addmm", "bfloat16", 0.5), ("addmm", "float32", 0.25), ("mylib.odd name", "float32", 0.125))
    timed(first, 9, ("mm", "bfloat16", 4.0), phase="backward")
    timed(second, 9, ("addmm", "bfloat16", 7.0))
    first.send()
    second.send()
    labels = ('dtype="bfloat16",op="addmm"', 'dtype="float32",op="addmm"', 'dtype="float32",op="mylib.odd name"')
    names = [f'ammeter_operator_seconds{{{label},run="{first.run}"}}' for label in labels]
    assert dict(zip(names, (0.5, 0.25, 0.125), strict=True)) == operator_times(client)


def test_operators_beyond_the_largest_are_one_and_no_time_that_is_no_number_counts(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 9)
    timed(stream, 9, *((f"op{number}", "float32", 2.0**-number) for number in range(MAX_OPERATORS + 1)))
    for odd in (-1.0, "long", None, 1e300):
        timed(stream, 9, ("op", "float32", odd))
    timed(stream, 9)
    stream.say("kernels.timed", 9, phase="forward", steps=1, operators="many")
    stream.say("kernels.timed", 9, phase="forward", steps=1, operators=["addmm"])
    stream.send()
    shown = operator_times(client)
    assert MAX_OPERATORS + 1 == len(shown)
    other = f'ammeter_operator_seconds{{dtype="_other",op="_other",run="{stream.run}"}}'
    assert 2.0**-MAX_OPERATORS == shown[other]


def test_a_closed_incident_is_0_for_a_while(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    break_down(stream, 41, 50)
    stream.send()
    incident = wait_until(lambda: client.get("/api/v1/incidents").json()["items"])[0]
    client.post(f"/api/v1/incidents/{incident['id']}/close", headers={"X-Ammeter-Request": "test"})
    active = {name: value for name, value in scrape(client).items() if name.startswith("ammeter_incident_active")}
    assert [0] == list(active.values())


def test_the_fleet_counts_runs_and_steps_once_by_outcome(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 20)
    stream.bye(20)
    stream.send()
    wait_until(lambda: 'ammeter_fleet_runs_total{outcome="ended",project="demo"}' in scrape(client))
    shown = scrape(client)
    assert 1 == shown['ammeter_fleet_runs_total{outcome="ended",project="demo"}']
    assert 21 == shown['ammeter_fleet_steps_total{outcome="applied",project="demo"}']
    assert f'ammeter_run_end_timestamp_seconds{{run="{stream.run}"}}' in shown


def test_a_run_that_ended_keeps_its_numbers_five_minutes_and_its_info_an_hour(client: httpx.Client) -> None:
    ends = {"now": 0, "ten minutes ago": 600, "two hours ago": 7200}
    streams = {}
    for word, seconds in ends.items():
        stream = streams[word] = Stream(client, begin=time.time_ns() - seconds * 10**9 - 30 * STEP)
        train(stream, 0, 20)
        stream.bye(20)
        stream.send()
        path = f"/api/v1/runs/{stream.run}"
        wait_until(lambda path=path: client.get(path).json()["state"] == "ended")  # type: ignore[misc]
    names = {
        word: {name.partition("{")[0] for name in scrape(client) if stream.run in name}
        for word, stream in streams.items()
    }
    assert {"ammeter_steps_total", "ammeter_run_info"} <= names["now"]
    assert {"ammeter_run_info", "ammeter_run_end_timestamp_seconds"} == names["ten minutes ago"]
    assert set() == names["two hours ago"]


def test_a_run_has_at_most_100_series_whatever_it_says(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP, config={"steps_per_epoch": 10})
    train(stream, 0, 40)
    break_down(stream, 41, 50)
    for number in range(9):
        stream.say("kernel.fallback", 50, op=f"op{number}", reason="policy", module="head", flops_share=0.1)
    timed(stream, 50, *((f"op{number}", "float32", 1.0) for number in range(9)))
    stream.say("checkpoint.saved", 50, missing=[])
    stream.say("checkpoint.verified", 50, outcome="passed")
    stream.tell(51, SAMPLED | {"grad_norm": 1.0, "device_allocated_bytes": 1e9, "device_reserved_bytes": 2e9})
    host = Host(client, run=stream.run, gpus=MAX_DEVICES)
    host.read(1)
    host.send()
    gaps = [Lost(f"reason {number}", steps=1, begin=number, end=number + 1) for number in range(30)]
    stream.send(gaps=gaps)
    wait_until(lambda: "ammeter_incident_active" in client.get("/metrics").text)
    shown = scrape(client)
    ours = [name for name in shown if stream.run in name and not name.startswith("ammeter_incident_active")]
    names = {re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]) for name in ours}
    missing = {metric.name for metric in METRICS if "run" in metric.labels} - names - {"ammeter_incident_active"}
    beside = {name for name in missing if "_baseline_" in name or "_delta_" in name}
    assert {"ammeter_run_end_timestamp_seconds"} == missing - beside
    # A run that has ended has no devices, and so never as many series as one that runs.
    assert 100 == len(ours) + len(beside) + MAX_INCIDENTS
    lost = {name: value for name, value in shown.items() if name.startswith("ammeter_agent_lost_records_total")}
    assert (MAX_REASONS + 1, 30) == (len(lost), sum(lost.values()))
    fallbacks = [value for name, value in shown.items() if name.startswith("ammeter_kernel_fallback_flops_ratio")]
    assert MAX_FALLBACKS + 1 == len(fallbacks)
    assert 0.9 == pytest.approx(sum(fallbacks))


def test_ranks_are_never_a_label(client: httpx.Client) -> None:
    first = Stream(client, world_size=2, begin=time.time_ns() - 60 * STEP)
    second = Stream(client, run=first.run, rank=1, world_size=2, begin=first.begin)
    for stream in (first, second):
        train(stream, 0, 9)
        stream.send()
    shown = scrape(client)
    assert 10 == shown[f'ammeter_steps_total{{outcome="applied",run="{first.run}"}}']
    assert 2 == shown[f'ammeter_run_ranks_reporting{{run="{first.run}"}}']
    assert not any("rank=" in name for name in shown)


def test_a_rank_that_comes_later_and_has_counted_less_takes_nothing_back(client: httpx.Client) -> None:
    first = Stream(client, rank=1, world_size=2, begin=time.time_ns() - 60 * STEP)
    later = Stream(client, run=first.run, rank=0, world_size=2, begin=first.begin)
    train(first, 0, 20)
    first.send()
    before = scrape(client)
    train(later, 0, 3)
    later.send()
    after = scrape(client)
    counts = {name for name in before if re.search(r"(_total|_bucket|_count|_sum)\{", name)}
    assert len(counts) > 40
    assert [] == [name for name in counts if after[name] < before[name]]
    assert 21 == after[f'ammeter_grad_norm_bucket{{le="+Inf",run="{first.run}"}}']


def test_promtool_finds_nothing_wrong_with_metrics_even_with_hostile_names(client: httpx.Client) -> None:
    stream = Stream(client, project='a"b\\c\nd{}é', begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 40)
    break_down(stream, 41, 50)
    stream.send()
    wait_until(lambda: "ammeter_incident_active" in client.get("/metrics").text)
    lint(client.get("/metrics").text)
    assert any(r'project="a"b\c' in name for name in scrape(client))


def test_promtool_finds_nothing_wrong_with_the_collectors_own_metrics(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send()
    lint(client.get("/metrics/self").text)
    shown = scrape(client, "/metrics/self")
    assert shown['ammeter_collector_ingest_requests_total{code="200"}'] >= 1
    assert shown["ammeter_collector_storage_bytes{}"] > 4096
    assert 0 == shown["ammeter_collector_outbox_pending{}"]
    assert any(name.startswith('ammeter_collector_build_info{version="') for name in shown)
    assert any(name.startswith('ammeter_collector_address_info{url="http://127.0.0.1:') for name in shown)


def test_who_accepts_openmetrics_gets_it(client: httpx.Client) -> None:
    stream = Stream(client, begin=time.time_ns() - 60 * STEP)
    train(stream, 0, 3)
    stream.send()
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    plain = client.get("/metrics", headers={"Accept": "*/*"})
    assert plain.headers["content-type"].startswith("text/plain")


def test_headroom_is_unknown_without_a_scale_or_a_largest_gradient() -> None:
    assert 0.0 == pytest.approx(headroom({"scale": 65504.0, "grad_absmax": 1.0}))
    for last in ({}, {"scale": 2.0}, {"scale": 2.0, "grad_absmax": 0.0}, {"scale": "Infinity", "grad_absmax": 1.0}):
        assert headroom(last) is None


def test_every_exported_metric_is_documented_and_every_documented_one_exported() -> None:
    counters = {f"{family.name}_total" for family in self_metrics.REGISTRY.collect() if family.type == "counter"}
    histograms = {family.name for family in self_metrics.REGISTRY.collect() if family.type == "histogram"}
    gauges = {family.name for family in self_metrics.REGISTRY.collect() if family.type == "gauge"}
    own = counters | histograms | gauges
    assert len(own) == len(list(self_metrics.REGISTRY.collect()))
    exported = {metric.name for metric in (*METRICS, *PROCESS_METRICS)} | own
    documented = set(re.findall(r"^\| `(ammeter_\w+)", DOCS.read_text(), re.MULTILINE))
    assert documented == exported
