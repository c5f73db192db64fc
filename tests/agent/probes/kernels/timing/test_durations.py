"""The time in operators: on the CPU that of the call, on CUDA that between two events, which are not waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.timing import durations
from ammeter.probes.kernels.timing.durations import Durations, Time

MATMUL = torch.ops.aten.mm.default


def timed(durations: Durations) -> dict[tuple[str, str], tuple[int, float]]:
    return {key: (time.calls, time.seconds) for key, time in durations.times()}


def test_calls_of_an_operator_and_dtype_add_up() -> None:
    times = Durations()
    half, single = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2)
    for output, seconds in ((half, 0.5), (half, 0.25), (single, 2.0)):
        times.end(MATMUL, (single, single), output, seconds, None)
    assert {("mm", "bfloat16"): (2, 0.75), ("mm", "float32"): (1, 2.0)} == timed(times)
    assert times.on_host
    assert times.is_complete


def test_the_operators_of_a_model_are_timed_without_its_views() -> None:
    layer, census = torch.nn.Linear(8, 8), Census()
    with census, torch.autocast("cpu", torch.bfloat16):
        layer(torch.ones(2, 4, 8))
        torch.ones(3).sum().item()
    found = timed(census.durations)
    assert {"addmm", "_to_copy", "ones", "sum", "_local_scalar_dense"} == {op for op, _ in found}
    assert (1, "bfloat16") == next((calls, dtype) for (op, dtype), (calls, _) in found.items() if op == "addmm")
    assert all(seconds > 0 for _, seconds in found.values())


def test_an_operator_of_the_program_has_its_library_in_the_name() -> None:
    with torch.library._scoped_library("ammeter_durations", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        census = Census()
        with census:
            torch.ops.ammeter_durations.twice(torch.ones(2))
    assert ("ammeter_durations.twice", "float32") in timed(census.durations)


def test_so_many_operators_are_kept_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "MAX_OPERATORS", 2)
    census = Census()
    with census:
        rows = torch.ones(2).t()
        rows.relu().exp()
        rows.relu()
    assert {("ones", "float32"): 1} == {key: calls for key, (calls, _) in timed(census.durations).items()}
    assert not census.durations.is_complete


@dataclass
class Device:
    """A stand-in for a stream of CUDA: events pass in their order, as far as the device has come."""

    passed: int = 0
    events: list[Event] = field(default_factory=list)


class Event:
    """A stand-in for torch.cuda.Event(enable_timing=True), with the time in ms as its place in the stream."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._place = -1

    def record(self) -> None:
        self._device.events.append(self)
        self._place = len(self._device.events)

    def query(self) -> bool:
        return 0 < self._place <= self._device.passed

    def elapsed_time(self, end: Event) -> float:
        assert [True, True] == [self.query(), end.query()]  # the driver refuses others
        return float(end._place - self._place)


class OnCuda:
    """A tensor as far as its time is concerned."""

    is_cpu, is_cuda, dtype = False, True, torch.bfloat16

    def __init__(self, device: int = 0) -> None:
        self._device = device

    def get_device(self) -> int:
        return self._device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(durations, "_first", lambda results: results[0])  # the stand-in is no torch.Tensor
    return Device()


def call(times: Durations, output: Any) -> None:
    begin = times.begin()
    times.end(MATMUL, (), output, 100.0, begin)


def test_on_cuda_the_time_is_between_two_events_which_are_read_once_they_have_passed(device: Device) -> None:
    times = Durations(lambda: Event(device))
    assert times.on_cuda
    for _ in range(3):
        call(times, OnCuda())
    assert [False] == [times.on_host]
    for device.passed in range(6):
        assert not times.ready()
    device.passed = 6
    assert times.ready()
    assert times.read() > 0
    assert {("mm", "bfloat16"): (3, 0.003)} == timed(times)
    assert times.on_host
    assert times.is_complete


def test_beside_cuda_an_operator_on_the_cpu_has_the_time_of_its_call(device: Device) -> None:
    times = Durations(lambda: Event(device))
    call(times, torch.ones(2))
    assert times.on_host
    assert {("mm", "float32"): (1, 100.0)} == timed(times)


def test_an_operator_on_another_device_than_that_of_the_stream_is_not_timed(device: Device) -> None:
    times = Durations(lambda: Event(device))
    call(times, OnCuda(device=1))
    assert times.on_host
    assert {} == timed(times)
    assert not times.is_complete


def test_so_many_operators_of_cuda_are_timed_and_none_while_a_graph_is_captured(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durations, "MAX_PAIRS", 1)
    times = Durations(lambda: Event(device))
    call(times, OnCuda())
    call(times, OnCuda())
    assert 2 == len(device.events)
    assert not times.is_complete
    monkeypatch.setattr(durations, "_is_capturing", lambda: True)
    assert Durations(lambda: Event(device)).begin() is None


def test_an_event_that_cannot_be_made_is_a_fault_of_the_census_and_not_of_the_program() -> None:
    def broken() -> Any:
        raise RuntimeError("no events left")

    census = Census()
    census.durations = Durations(broken)
    with census:
        assert 2 == torch.ones(2).sum().item()
    assert "no events left" == str(census.fault)


def test_times_of_two_calls_add_up() -> None:
    time = Time(1, 0.5)
    time.add(2, 0.25)
    assert Time(3, 0.75) == time
