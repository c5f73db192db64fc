"""The parts of the origin probe by themselves: numbers, inputs, windows, the frontier."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch

from ammeter.probes.origin import floats, frontier
from ammeter.probes.origin.floats import Numbers, Readings, inside
from ammeter.probes.origin.graph import culprit as graph_culprit
from ammeter.probes.origin.hook_windows import (
    MAX_WINDOWS,
    MIN_DISTANCE_STEPS,
    WINDOW_STEPS,
    HookWindows,
)

NAN, INF = math.nan, math.inf


def read(tensor: torch.Tensor) -> Numbers:
    readings = Readings()
    place = readings.add(tensor)
    found = readings.all()[place]
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0, -3.0], [2.0, 0.0]], (3, 0, 0, 0, -1)),
        ([[1.0, -3.0], [NAN, 0.0]], (3, 1, 0, 0, 1)),
        ([[INF, NAN], [-INF, -INF]], (0, 1, 1, 2, 0)),
        ([[0.0, 0.0], [0.0, -INF]], (0, 0, 0, 1, 1)),
    ],
)
def test_the_numbers_of_a_tensor_are_counted(values: Any, expected: Any, dtype: torch.dtype) -> None:
    assert expected == tuple(read(torch.tensor(values, dtype=dtype)))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (4, 3, 5), (1, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_on_a_device_the_same_numbers_are_counted_without_a_decision_on_the_host(shape: Any, seed: int) -> None:
    torch.manual_seed(seed)
    tensor = torch.randn(shape)
    spoiled = torch.where(
        torch.rand(shape) < 0.2 * seed, torch.tensor([NAN, INF, -INF])[torch.randint(3, shape)], tensor
    )
    assert tuple(read(spoiled)) == pytest.approx(floats._measure(spoiled).tolist())


def test_numbers_on_a_device_arrive_in_their_places() -> None:
    class Away(torch.Tensor):
        is_cpu = False

    readings = Readings()
    tensors = [torch.tensor([1.0, NAN]), torch.tensor([2.0, -5.0])]
    places = [readings.add(tensor.as_subclass(Away)) for tensor in tensors]
    assert [None, None] == readings.all()
    (arriving,) = readings.send()
    assert arriving.ready()
    assert [] == readings.send()
    assert [Numbers(1, 1, 0, 0, 1), Numbers(5, 0, 0, 0, -1)] == [readings.all()[place] for place in places]


class RunComparison(NamedTuple):
    left: Any
    right: Any


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


def test_tensors_are_found_in_what_programs_nest() -> None:
    x, whole = torch.ones(2), torch.ones(2, dtype=torch.int64)
    nested = {"a": [x, (whole, RunComparison(x, None))], "b": OrderedDict(c=Output(x)), 3: "text"}
    assert ["['a'][0]", "['a'][1][1][0]", "['b']['c'].logits"] == [path for path, _ in inside(nested)]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, device="meta"),
        torch.ones(2, 2).to_sparse(),
        torch.ones(0),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2, dtype=torch.bool),
    ],
    ids=["meta", "sparse", "empty", "complex", "bool"],
)
def test_what_has_no_numbers_to_read_is_passed_over(tensor: torch.Tensor) -> None:
    assert [] == list(inside([tensor]))


def test_what_holds_itself_ends() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert floats.MAX_DEPTH == len(list(inside(loop)))


def event(count: int, finite_after: int, finite: int, last: str = "blocks.2.fc.weight") -> dict[str, Any]:
    tensors = [{"tensor": last, "nans": 3, "infs": 0}]
    return {"tensors": tensors * count, "count": count, "last": last, "finite_after": finite_after, "finite": finite}


def test_a_frontier_names_the_module_of_the_last_tensor() -> None:
    found = frontier.find_origin(event(count=5, finite_after=3, finite=4))
    assert found is not None
    assert ("backward", "blocks.2.fc", 3) == (found["kind"], found["module"], found["nans"])


@pytest.mark.parametrize(
    ("count", "finite_after", "finite"), [(5, 0, 0), (5, 0, 3), (1, 3, 9)], ids=["all", "none behind", "one alone"]
)
def test_without_a_frontier_nothing_is_said(count: int, finite_after: int, finite: int) -> None:
    assert frontier.find_origin(event(count, finite_after, finite)) is None


def test_a_gradient_that_is_alone_is_named_unless_all_are_such() -> None:
    found = frontier.last_nonfinite(event(count=1, finite_after=3, finite=9))
    assert found is not None
    assert ("backward", "blocks.2.fc", "hooks") == (found["kind"], found["module"], found["confidence"])
    assert frontier.last_nonfinite(event(count=5, finite_after=0, finite=0)) is None


def test_a_window_begins_with_the_next_step_and_ends() -> None:
    windows = HookWindows()
    assert [] == [step for step in range(5) if windows.is_on(step)]
    windows.request()
    on = [step for step in range(5, 30) if windows.is_on(step)]
    assert list(range(5, 5 + WINDOW_STEPS)) == on
    assert [5 + WINDOW_STEPS - 1] == [step for step in on if windows.is_last(step)]


def test_windows_keep_their_distance_and_their_number() -> None:
    windows, on = HookWindows(), []
    for step in range(3 * MAX_WINDOWS * MIN_DISTANCE_STEPS):
        wanted = windows.request()
        if windows.is_on(step):
            on.append(step)
    assert MAX_WINDOWS * WINDOW_STEPS == len(on)
    assert {MIN_DISTANCE_STEPS} == {later - sooner for sooner, later in pairwise(on[::WINDOW_STEPS])}
    assert not wanted


def test_after_windows_in_vain_the_next_ones_come_at_once_and_then_less_and_less_soon() -> None:
    windows, begins = HookWindows(), []
    for step in range(MAX_WINDOWS * MIN_DISTANCE_STEPS):
        windows.request()
        if windows.is_on(step) and windows.is_last(step):
            begins.append(step - WINDOW_STEPS + 1)
            windows.was_empty()
    assert MAX_WINDOWS == len(begins)
    waits = [later - sooner - WINDOW_STEPS for sooner, later in pairwise(begins)]
    assert [0, 0, 0, 5, 10, 20, 40, 80] == waits[:8]
    assert {MIN_DISTANCE_STEPS - WINDOW_STEPS} == set(waits[8:])


def test_a_window_of_named_steps_needs_no_distance() -> None:
    windows = HookWindows()
    windows.request()
    assert [True] * WINDOW_STEPS == [windows.is_on(step) for step in range(WINDOW_STEPS)]
    windows.open(WINDOW_STEPS, WINDOW_STEPS + 2)
    assert [True, True, True, False] == [windows.is_on(step) for step in range(WINDOW_STEPS, WINDOW_STEPS + 4)]
    windows.open(20, 20)
    assert [(20, True)] == [(step, windows.is_last(step)) for step in range(20, 100) if windows.is_on(step)]


def test_an_overflow_is_counted_where_the_next_layer_reshapes_its_input() -> None:
    torch.manual_seed(0)
    enter, leave = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    with torch.autocast("cpu", torch.float16):
        loss = leave(torch.tanh(enter(torch.randn(2, 4, 6))).add(0).mul_(9e6)).float().square().mean()
    found = graph_culprit.find_origin(loss, lambda tensor: "", lambda path: False)
    assert found is not None
    assert ("MulBackward0", 0) == (found["op"], found["nans"])
    assert found["infs"] > 0
