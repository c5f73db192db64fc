from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import is_plain, unseen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_numbers_on_the_cpu_are_there_at_once(dtype: torch.dtype) -> None:
    arriving = async_copy.of(torch.tensor([[1, 2], [3, 4]], dtype=dtype))
    assert arriving.ready()
    assert [1.0, 2.0, 3.0, 4.0] == arriving.array().tolist()
    assert (np.float64 if dtype is torch.float64 else np.float32) == arriving.array().dtype


def test_later_changes_of_the_tensor_do_not_show() -> None:
    scale = torch.full((1,), 8.0)
    arriving = async_copy.of(scale)
    scale.fill_(4.0)
    assert [8.0] == arriving.array().tolist()


def test_a_tensor_with_a_history_is_read_without_joining_it() -> None:
    loss = (torch.ones(2, requires_grad=True) * 3).sum()
    assert [6.0] == async_copy.of(loss).array().tolist()
    loss.backward()  # type: ignore[no-untyped-call]


def test_a_number_beyond_float32_is_infinite_and_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [math.inf] == async_copy.number(1e300).array().tolist()
        assert [-math.inf] == async_copy.number(-1e300).array().tolist()


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_does_not_see_what_is_read() -> None:
    value = torch.ones(3)
    with Functions() as functions, Calls() as calls:
        found = async_copy.of(value)
        unseen(lambda: torch._foreach_norm([value], 2), [value])
    assert ([], []) == (calls.seen, functions.seen)
    assert [1.0, 1.0, 1.0] == found.array().tolist()


def test_a_mode_that_was_passed_by_sees_the_programs_own_calls_again() -> None:
    value = torch.ones(3)
    with Calls() as calls:
        unseen(lambda: None, [value])
        value + 1
    assert ["aten.add.Tensor"] == calls.seen


def test_a_default_device_of_the_program_is_not_ours() -> None:
    torch.set_default_device("meta")
    try:
        assert [2.0] == async_copy.of(torch.tensor([2.0], device="cpu")).array().tolist()
        assert "cpu" == unseen(lambda: torch.empty(1), []).device.type
    finally:
        torch.set_default_device(None)


def test_a_tensor_with_operators_of_its_own_is_not_read_behind_their_back() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
        assert not is_plain(fake)
        assert type(fake) is type(unseen(lambda: fake + 1, [fake]))
    assert is_plain(torch.nn.Parameter(torch.ones(1)))


def test_a_subclass_that_only_adds_methods_is_plain() -> None:
    class Named(torch.Tensor):
        pass

    assert is_plain(torch.ones(1).as_subclass(Named))
    assert [1.0] == async_copy.of(torch.ones(1).as_subclass(Named)).array().tolist()


def test_what_is_known_is_one_number_here_on_the_host() -> None:
    assert 3.5 == async_copy.known(torch.tensor(3.5, requires_grad=True))
    assert 3.5 == async_copy.known(torch.tensor([[3.5]]))
    assert 2.0 == async_copy.known(torch.nn.Parameter(torch.tensor(2.0)))
    assert async_copy.known(torch.ones(2)) is None
    assert async_copy.known(torch.ones(0)) is None
    assert async_copy.known(torch.ones((), device="meta")) is None
    with FakeTensorMode():
        assert async_copy.known(torch.ones(())) is None


def test_what_is_known_passes_by_the_modes_of_the_program() -> None:
    one = torch.tensor(1.5)
    with Functions() as functions, Calls() as calls:
        assert 1.5 == async_copy.known(one)
    assert ([], []) == (functions.seen, calls.seen)
