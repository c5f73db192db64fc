"""The compiled reader in programs with modes, flushed subnormals or no library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ammeter import tensors as stats
from ammeter.tensors import ABSMAX, COLUMNS, NANS, NORM, cpu, native
from tests.agent.stats_reference import assert_same, reference
from tests.agent.tensors.test_native import compiled


@pytest.fixture
def flushed() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)


@compiled
@pytest.mark.usefixtures("flushed")
def test_a_program_that_flushes_subnormals_has_them_counted_and_still_flushes() -> None:
    tensor = torch.tensor([1, 2, 3], dtype=torch.int32).view(torch.float32)
    found = native.read([tensor])
    assert found is not None
    assert [3 * 2.0**-149, 0, 0, 0, 3, 3, 0] == found[0, ABSMAX:].tolist()
    assert np.sqrt(14) * 2.0**-149 == pytest.approx(found[0, NORM], rel=1e-12, abs=0)
    assert [0.0] * 3 == (tensor * 2).tolist()


def test_counts_of_the_plain_reader_do_not_depend_on_flushing(flushed: None) -> None:
    tensor = torch.tensor([1, 2, 3], dtype=torch.int32).view(torch.float32)
    assert [0, 0, 0, 3, 3, 0] == cpu.read([tensor])[0, NANS:].tolist()


class _Calls(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@compiled
def test_the_modes_of_a_program_do_not_see_the_reading() -> None:
    tensors, reader = [torch.randn(5), torch.randn(4, 4)[:, ::2], torch.randn(3)], native.Reader()
    with _Calls() as calls, _Operators() as operators:
        first, second = reader.read(tensors), reader.read(tensors[:1])
    assert [] == calls.seen == operators.seen
    assert_same(reference(tensors), first)
    assert_same(reference(tensors[:1]), second)


@compiled
@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu")])
def test_a_reader_works_in_every_state_of_torch(around: Callable[[], Any]) -> None:
    reader, tensors = native.Reader(), [torch.randn(5)]
    assert_same(reference(tensors), reader.read(tensors))
    with around():
        assert_same(reference(tensors), reader.read(tensors))
        assert_same(reference(tensors), reader.read([torch.tensor(tensors[0].tolist())]))


def test_without_the_library_nothing_is_read_and_the_reason_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", native.LIBRARY.with_name("no.so"))
    level, missing, _ = native._load()
    assert (0, "no.so is not there: Ammeter was installed without a C compiler") == (level, missing)
    monkeypatch.setattr(native, "MISSING", missing)
    assert native.read([torch.ones(3)]) is None
    assert native.norms([torch.ones(3)]) is None


def test_a_reading_of_nothing_has_no_rows() -> None:
    assert (0, COLUMNS) == cpu.read([]).shape
    if not native.MISSING:
        found = native.read([])
        assert found is not None
        assert (0, COLUMNS) == found.shape


def test_how_gradients_are_read_is_told_for_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"cpu", "cuda"} == set(stats.available())
    monkeypatch.setattr(native, "MISSING", "")
    assert "compiled code" in stats.available()["cpu"]
    monkeypatch.setattr(native, "MISSING", "it was forgotten")
    assert "torch's operators, rarely, as the budget allows: it was forgotten" == stats.available()["cpu"]
    monkeypatch.setattr(stats, "_triton", lambda: "")
    assert stats.available()["cuda"].endswith("Triton is not installed")
    monkeypatch.setattr(stats, "_triton", lambda: "3.9.0")
    assert "Triton 3.9.0" == stats.available()["cuda"]
