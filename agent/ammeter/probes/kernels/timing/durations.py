"""Times the operators that a census observes, by operator and dtype of the result.

On the CPU an operator is done when its call returns. On CUDA it runs later, so it is between two events of its stream,
which are read without waiting for them. Views compute nothing and are not timed, nor are operators on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import torch

MAX_OPERATORS = 256
"""Combinations of operator and dtype in one call; it bounds memory."""

MAX_PAIRS = 2048
"""Operators of one call that are timed on CUDA: two events of the driver for each of them."""


class Time(msgspec.Struct):
    """Calls of an operator and the seconds in them."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, calls: int, seconds: float) -> None:
        self.calls += calls
        self.seconds += seconds


class _Operator(Time, kw_only=True):
    func: Any
    is_view: bool


class Begin(NamedTuple):
    """An event before an operator, and the device of its stream."""

    event: Any
    device: int


class _Pair(NamedTuple):
    begin: Any
    end: Any
    operator: _Operator


Key = tuple[str, str]
"""(operator, dtype of its result)."""


class Durations:
    """The times of the operators of one call.

    Attributes:
        on_cuda: whether operators may run on CUDA, where begin() has to mark their begin.
        is_complete: whether every operator that computes was timed.
        on_host: whether all times are there already; False makes a row wait until ready().
    """

    def __init__(self, new_event: Callable[[], Any] | None = None) -> None:
        self.on_cuda = new_event is not None or _has_cuda()
        self.is_complete = True
        self._new_event = new_event or _timing_event
        self._times: dict[tuple[int, torch.dtype], _Operator] = {}
        self._pairs: list[_Pair] = []
        self._seconds = 0.0

    @property
    def on_host(self) -> bool:
        return not self._pairs

    def begin(self) -> Begin | None:
        """Marks the begin of an operator in the current stream; None if it cannot be timed there."""
        if len(self._pairs) >= MAX_PAIRS or _is_capturing():
            return None
        return Begin(self._recorded(), _current_device())

    def end(self, func: Any, args: Any, output: Any, seconds: float, begin: Begin | None) -> None:
        """Adds an operator that has been called.

        Args:
            func: the operator.
            args: its arguments.
            output: its result.
            seconds: duration of the call.
            begin: the result of begin().
        """
        tensor = output if isinstance(output, torch.Tensor) else _first((output, args))
        if tensor is None:
            return
        key = (id(func), tensor.dtype)  # the hash of an operator costs more than all else here
        known = self._times.get(key) or self._new(key, func)
        if known.is_view:
            return
        if tensor.is_cpu:
            known.calls += 1
            known.seconds += seconds
        elif begin is not None and (tensor.is_cuda, tensor.get_device()) == (True, begin.device):
            self._pairs.append(_Pair(begin.event, self._recorded(), known))
        else:
            self.is_complete = False

    def ready(self) -> bool:
        """Whether all operators have run on the device. Does not wait."""
        began = perf_counter()
        is_ready = all(pair.end.query() for pair in reversed(self._pairs))
        self._seconds += perf_counter() - began
        return is_ready

    def read(self) -> float:
        """Adds the times between the events, once ready(). Returns the seconds that both took."""
        began = perf_counter()
        for begin, end, operator in self._pairs:
            operator.add(1, begin.elapsed_time(end) / 1000)
        self._pairs.clear()
        return self._seconds + perf_counter() - began

    def times(self) -> Iterable[tuple[Key, Time]]:
        """Returns the times by operator and dtype. A key may occur twice: once for each overload of the operator."""
        for (_, dtype), operator in self._times.items():
            if operator.calls:
                name = str(getattr(operator.func, "_overloadpacket", operator.func)).removeprefix("aten.")
                yield (name, str(dtype).removeprefix("torch.")), operator

    def _new(self, key: tuple[int, torch.dtype], func: Any) -> _Operator:
        operator = _Operator(func=func, is_view=getattr(func, "is_view", False))
        if len(self._times) < MAX_OPERATORS:
            self._times[key] = operator
        else:
            self.is_complete &= operator.is_view
        return operator

    def _recorded(self) -> Any:
        event = self._new_event()
        event.record()
        return event


def _first(value: Any) -> torch.Tensor | None:
    """Returns the first tensor among results or arguments."""
    for member in value if isinstance(value, tuple | list) else ():
        if isinstance(member, torch.Tensor):
            return member
        inner = _first(member)
        if inner is not None:
            return inner
    return None


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _has_cuda() -> bool:
    """Whether the program uses CUDA, which a census must not initialize."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _is_capturing() -> bool:
    return _has_cuda() and torch.cuda.is_current_stream_capturing()


def _current_device() -> int:
    return torch.cuda.current_device() if _has_cuda() else 0
