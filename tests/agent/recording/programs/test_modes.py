"""Watching under the modes of a program: dispatch, fake tensors, profiler, anomaly detection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ammeter.wire.columns import measured
from tests.agent.recording.programs.loops import amp_step, eight_steps, same_rows


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Asked(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", repr(func)))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_of_the_program_sees_the_program_only(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        amp_step(model, optimizer, scaler)
        with Seen() as mode:
            eight_steps(model, optimizer, scaler)
        calls.append(mode.calls)

    assert 9 == len(same_rows(tmp_path, loop))
    assert calls[0] == calls[1]


def test_a_flop_counter_of_the_program_counts_the_program_only(tmp_path: Path) -> None:
    flops: list[int] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with FlopCounterMode(display=False) as counter:
            eight_steps(model, optimizer, scaler)
        flops.append(counter.get_total_flops())

    same_rows(tmp_path, loop)
    assert flops[0] == flops[1] > 0


def test_under_a_function_mode_and_another_default_device_a_run_is_the_same(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with Asked(), torch.device("cpu"):
            eight_steps(model, optimizer, scaler)

    assert 8 == len(same_rows(tmp_path, loop))


def test_steps_of_fake_tensors_are_not_read_and_real_ones_behind_them_are(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with FakeTensorMode():
            twin = torch.nn.Linear(4, 1)
            twin(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(twin.parameters(), lr=1.0).step()
        eight_steps(model, optimizer, scaler)

    rows = same_rows(tmp_path, loop)
    assert 8 == len(rows)
    assert measured(rows.scalar("loss")).all()


def test_under_strict_errors_of_numpy_a_run_is_the_same(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with np.errstate(all="raise"):
            eight_steps(model, optimizer, scaler)
            assert {"raise"} == set(np.geterr().values())

    assert 8 == len(same_rows(tmp_path, loop))


def test_a_profiler_of_the_program_has_its_events_and_the_run_its_rows(tmp_path: Path) -> None:
    names: list[set[str]] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            eight_steps(model, optimizer, scaler)
        names.append({event.key for event in profile.key_averages()})

    assert 8 == len(same_rows(tmp_path, loop))
    assert {"Optimizer.step#SGD.step", "aten::addmm"} <= names[0] <= names[1]


def test_anomaly_detection_of_the_program_stays_as_it_is(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        with torch.autograd.detect_anomaly(check_nan=False):
            eight_steps(model, optimizer, scaler)

    with pytest.warns(UserWarning, match="Anomaly Detection"):
        assert 8 == len(same_rows(tmp_path, loop))
