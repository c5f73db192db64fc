from __future__ import annotations

import copy
import pickle
from types import CellType, FunctionType
from typing import Any

import pytest
import torch

from ammeter.torch_hooks import patch


class Base:
    def work(self, value: int) -> int:
        return value + 1


class Child(Base):
    def work(self, value: int) -> int:
        return super().work(value) * 2


class Sibling(Base):
    pass


def _noting(calls: list[Any]) -> dict[str, Any]:
    return {
        "before": lambda args, kwargs: calls.append(("before", args[1])),
        "after": lambda args, kwargs, result: calls.append(("after", result)),
    }


def test_a_subscriber_hears_the_call_and_its_result_and_the_result_is_unchanged() -> None:
    calls: list[Any] = []
    handle = patch.method(Base, "work", **_noting(calls))
    assert 4 == Base().work(3)
    handle.remove()
    assert [("before", 3), ("after", 4)] == calls


def test_the_method_is_patched_where_the_mro_defines_it() -> None:
    calls: list[Any] = []
    handle = patch.method(Sibling, "work", **_noting(calls))
    assert ["Base.work"] == patch.attached()
    assert 4 == Sibling().work(3)
    handle.remove()
    assert 2 == len(calls)


def test_an_override_that_calls_super_counts_once() -> None:
    calls: list[Any] = []
    handles = [patch.method(kind, "work", **_noting(calls)) for kind in (Base, Child)]
    assert 8 == Child().work(3)
    for handle in handles:
        handle.remove()
    assert [("before", 3), ("after", 8)] == calls


def test_the_last_one_to_leave_puts_the_original_back() -> None:
    original = vars(Base)["work"]
    first, second = patch.method(Base, "work"), patch.method(Base, "work")
    first.remove()
    assert vars(Base)["work"] is not original
    second.remove()
    second.remove()
    assert vars(Base)["work"] is original


def test_a_wrapper_that_somebody_kept_is_inert_after_the_end() -> None:
    calls: list[Any] = []
    handle = patch.method(Base, "work", **_noting(calls))
    kept = Base.work
    handle.remove()
    assert 4 == kept(Base(), 3)
    assert [] == calls


def test_what_somebody_patched_over_ours_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    original = vars(Base)["work"]
    handle = patch.method(Base, "work")
    ours = vars(Base)["work"]
    theirs = lambda self, value: ours(self, value) + 100  # noqa: E731
    monkeypatch.setattr(Base, "work", theirs)
    handle.remove()
    assert vars(Base)["work"] is theirs
    assert 104 == Base().work(3)
    monkeypatch.setattr(Base, "work", original)


def test_an_exception_passes_and_the_next_call_is_heard() -> None:
    calls: list[Any] = []
    handle = patch.method(Base, "work", **_noting(calls))
    with pytest.raises(TypeError):
        Base().work("three")  # type: ignore[arg-type]
    Base().work(1)
    handle.remove()
    assert [("before", "three"), ("before", 1), ("after", 2)] == calls


def test_who_asks_to_be_called_in_any_case_is() -> None:
    calls: list[Any] = []
    note = lambda args, kwargs, result: calls.append(result is patch.RAISED)  # noqa: E731
    handles = [patch.method(Base, "work", after=note, always=always) for always in (True, False)]
    with pytest.raises(TypeError):
        Base().work("three")  # type: ignore[arg-type]
    assert [True] == calls
    Base().work(1)
    for handle in handles:
        handle.remove()
    assert [True, False, False] == calls


def test_a_class_that_is_pickled_by_its_value_takes_a_pass_through_along() -> None:
    class Called:
        def __call__(self, value: int) -> int:
            return value + 1

    handle = patch.called(Called, lambda args, kwargs: None)
    (call_patch,) = [installed for installed in patch._patches.values() if installed.owner is Called]
    again = pickle.loads(pickle.dumps(call_patch))
    wrapper: Any = vars(Called)["__call__"]
    handle.remove()
    assert ("__call__", ()) == (again.name, again.subscribers)
    assert "ammeter" not in type(again).__module__
    cells = [CellType(again) if cell.cell_contents is call_patch else cell for cell in wrapper.__closure__]
    unpickled = FunctionType(wrapper.__code__, wrapper.__globals__, closure=tuple(cells))
    assert 4 == unpickled(Called(), 3)


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="Base has no method 'rest'"):
        patch.method(Base, "rest")


def test_a_patched_scaler_can_be_pickled_and_copied() -> None:
    handle = patch.method(torch.amp.GradScaler, "update")
    scaler = torch.amp.GradScaler("cpu")
    again, copied = pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)
    handle.remove()
    assert scaler.state_dict() == again.state_dict() == copied.state_dict()


def test_clip_grad_norm_imported_by_name_is_heard() -> None:
    from torch.nn.utils import clip_grad_norm_

    from ammeter.torch_hooks.clip_calls import clip_function

    calls: list[Any] = []
    handle = patch.function(*clip_function(), before=lambda args, kwargs: calls.append(args))
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    clip_grad_norm_([parameter], 0.5)
    handle.remove()
    assert 1 == len(calls)


def test_a_method_and_the_function_of_the_same_name_that_it_calls_are_two_calls() -> None:
    heard: list[str] = []
    handles = [
        patch.method(torch.Tensor, "backward", before=lambda args, kwargs: heard.append("method")),
        patch.function(torch.autograd, "backward", before=lambda args, kwargs: heard.append("function")),
    ]
    torch.ones(2, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    for handle in handles:
        handle.remove()
    assert ["method", "function"] == heard
