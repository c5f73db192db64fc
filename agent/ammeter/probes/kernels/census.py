"""Counts the operators of one call below autocast: FLOPs, casts, attention backends and durations.

FLOPs are counted by operator, dtype and module, durations by operator and dtype.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from time import perf_counter
from types import FrameType
from typing import Any

import msgspec
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from ammeter.probes.kernels.float32_reference import References
from ammeter.probes.kernels.round_trips import RoundTrips
from ammeter.probes.kernels.timing.durations import Begin, Durations
from ammeter.torch_hooks import call_site as caller

LOW_PRECISION = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)

HIDDEN_SECONDS = 4e-6
"""Cost of dispatching one operator to the mode, outside the measured code: an order of magnitude."""

MAX_SECONDS = 0.05
"""Seconds of overhead after which a census stops counting, so very long forward passes are counted in part."""

MAX_COUNT_SECONDS = 0.001
"""Maximum seconds charged for counting one operator: some thirty times the usual cost.

A longer measurement means that the machine ran another process meanwhile, which must not end a census.
"""

MAX_WORKS = 4096
"""Distinct combinations of module, operator, dtype and reason in one census; it bounds memory."""

_aten = torch.ops.aten
_CAST = _aten._to_copy.default
_FUNCTION = torch.autograd.function.__file__


class Work(msgspec.Struct):
    """The work of one operator in one module with one dtype.

    Attributes:
        reason: cause of a fallback or inefficiency, '' if there is none.
        shape: shapes of its two operands.
        caller: line of the program that called it first, for work with a reason.
    """

    module: str
    op: str
    dtype: torch.dtype
    reason: str
    flops: int = 0
    shape: str = ""
    caller: str = ""


class Census(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that is active during one call. It never raises; it stores an exception as `fault`.

    Attributes:
        module: path of the module that runs now, set by hooks.
        is_region: whether autocast was on somewhere in the call.
        written_out: modules that compute attention with separate operators.
        cast_bytes: bytes written by casts between floating-point dtypes.
        recast_bytes: the part of cast_bytes from parameters that were cast before in this call.
        uncached_bytes, frozen_bytes: the parts of it that were cast while autocast's cache was off, and from parameters
            without gradient, which autocast does not cache.
        round_trips: the casts to float32 and straight back.
        durations: the times of the operators.
        seconds: overhead of the census, without that of its references.
        references: computes sensitive operators again in float32; None if this census does not.
    """

    supports_higher_order_operators = True

    def __init__(self, references: References | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.references = references
        self.module = ""
        self.is_region = False
        self.work: dict[tuple[str, str, torch.dtype, str], Work] = {}
        self.attention: set[str] = set()
        self.written_out: set[str] = set()
        self.casts = 0
        self.cast_bytes = 0
        self.recast_bytes = self.uncached_bytes = self.frozen_bytes = 0
        self.seconds = 0.0
        self.fault: Exception | None = None
        self.round_trips = RoundTrips()
        self.durations = Durations()
        self._autocast: dict[str, bool] = {}
        self._cast: dict[int, weakref.ref[Any]] = {}

    @property
    def is_complete(self) -> bool:
        return self.seconds < MAX_SECONDS

    def switch(self, autocast: dict[str, bool]) -> None:
        """Receives whether autocast is on, by device type, because that is not readable below autocast."""
        self._autocast = autocast
        self.is_region = self.is_region or any(autocast.values())

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keeps compiled functions compiled while this mode is active."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = self._begin() if self.durations.on_cuda else None
        called = perf_counter()
        output = func(*args, **(kwargs or {}))
        began = perf_counter()
        if self.seconds >= MAX_SECONDS:
            self.seconds += HIDDEN_SECONDS
        elif self.fault is None:
            try:
                self.durations.end(func, args, output, began - called, begin)
                self._count(func, args, kwargs or {}, output)
            except Exception as error:  # noqa: BLE001 - an error in counting must never reach the program
                self.fault = error
            self.seconds += min(perf_counter() - began, MAX_COUNT_SECONDS) + HIDDEN_SECONDS
            if self.references is not None:
                self._compute_again(self.references, func, args, kwargs or {}, output)
        return output

    def _begin(self) -> Begin | None:
        """Marks the begin of an operator on the device."""
        if self.seconds >= MAX_SECONDS or self.fault is not None:
            return None
        began = perf_counter()
        try:
            return self.durations.begin()
        except Exception as error:  # noqa: BLE001 - as above
            self.fault = error
            return None
        finally:
            self.seconds += perf_counter() - began

    def _compute_again(self, references: References, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        try:
            references.observe(func, args, kwargs, output, self.module)
        except Exception as error:  # noqa: BLE001 - as above
            self.fault, self.references = error, None

    def _count(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        if func is _CAST:
            self._count_cast(args[0], output)
            return
        packet = getattr(func, "_overloadpacket", func)
        formula = _FORMULAS.get(packet)
        if formula is not None:
            self._count_work(func, packet, formula(*args, **kwargs, out_val=output), args, output)
        elif packet is _SAFE_SOFTMAX:
            self.attention.add("math")
            self.written_out.add(self.module)

    def _count_cast(self, source: torch.Tensor, output: torch.Tensor) -> None:
        if source.dtype == output.dtype or not (source.is_floating_point() and output.is_floating_point()):
            return
        size = output.numel() * output.element_size()
        self.casts += 1
        self.cast_bytes += size
        if isinstance(source, torch.nn.Parameter):
            known = self._cast.get(id(source))
            if known is not None and known() is source:
                self.recast_bytes += size
                self.uncached_bytes += size * (not torch.is_autocast_cache_enabled())
                self.frozen_bytes += size * (not source.requires_grad)
            self._cast[id(source)] = weakref.ref(source)
        else:
            self.round_trips.observe(source, output, self.module)

    def _count_work(self, func: Any, packet: Any, flops: int, args: Any, output: Any) -> None:
        outputs = output if isinstance(output, tuple | list) else (output,)
        first = next((candidate for candidate in outputs if isinstance(candidate, torch.Tensor)), None)
        if first is None or not first.is_floating_point() or not flops:
            return
        op = str(packet).removeprefix("aten.")
        backend = _BACKENDS.get(op)
        if backend:
            self.attention.add(backend)
        operands = _operands(op, args)
        reason = _misaligned(op, operands) if first.dtype in LOW_PRECISION else self._reason(func, first)
        key = (self.module, op, first.dtype, reason)
        work = self.work.get(key)
        if work is None:
            if len(self.work) >= MAX_WORKS:
                return
            where = caller.line() if reason else ""
            shape = " x ".join(str(tuple(operand.shape)) for operand in operands)
            work = self.work[key] = Work(*key, shape=shape, caller=where)
        work.flops += flops

    def _reason(self, func: Any, output: torch.Tensor) -> str:
        """The reason why an operator did not run in low precision."""
        if output.dtype is torch.float64:
            return "float64"
        if self._autocast.get(output.device.type):
            return "custom-function" if _in_custom_function() else "policy"
        if any(self._autocast.values()):
            return "wrong-device"
        return "autocast-off"


class Summary(msgspec.Struct):
    """The result of the censuses of one step, or of one backward pass.

    Attributes:
        eligible: FLOPs of matrix products, convolutions and attention.
        low: the part of them in low precision.
        fallbacks: work with a reason, most FLOPs first.
    """

    eligible: int = 0
    low: int = 0
    fallbacks: list[Work] = msgspec.field(default_factory=list)


def summary(censuses: Iterable[Census]) -> Summary:
    result = Summary()
    for census in censuses:
        for work in census.work.values():
            _add(result, work, census)
    result.fallbacks.sort(key=lambda work: -work.flops)
    return result


def _add(result: Summary, work: Work, census: Census) -> None:
    result.eligible += work.flops
    result.low += work.flops if work.dtype in LOW_PRECISION else 0
    if work.module in census.written_out and _of_attention(work):
        work.reason = "sdpa-math"
    if work.reason == "autocast-off" and census.is_region:
        work.reason = "autocast-disabled"
    if work.reason:
        result.fallbacks.append(work)


def _of_attention(work: Work) -> bool:
    """Whether the work may be part of attention computed with separate operators.

    It then ran under autocast, or as a batched product in a model with half-precision weights.
    """
    return work.reason == "policy" or (work.reason == "autocast-off" and work.op in ("bmm", "baddbmm"))


def _operands(op: str, args: Any) -> list[torch.Tensor]:
    """The two tensors that an operator multiplies."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return tensors[1:3] if op in ("addmm", "baddbmm") else tensors[:2]


def _misaligned(op: str, operands: list[torch.Tensor]) -> str:
    """'misaligned' if a size prevents the efficient use of tensor cores, else ''.

    Tensor cores need multiples of 8 for the inner and last dimensions of a product and the channels of a convolution.
    """
    if op in ("mm", "addmm", "bmm", "baddbmm"):
        sizes = operands[1].shape[-2:]
    elif op in ("convolution", "_convolution"):
        sizes = operands[1].shape[:2]
    else:
        return ""
    return "misaligned" if any(size % 8 for size in sizes) else ""


def _in_custom_function() -> bool:
    """Whether a torch.autograd.Function of the program is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "apply" and frame.f_code.co_filename == _FUNCTION:
            return True
        frame = frame.f_back
    return False


def _attention_for_cpu(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


_FORMULAS: dict[Any, Callable[..., int]] = dict(flop_registry)
_SAFE_SOFTMAX = getattr(_aten, "_safe_softmax", None)
_BACKENDS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "flex_attention": "flex",
}
if hasattr(_aten, "_scaled_dot_product_flash_attention_for_cpu"):
    _FORMULAS.setdefault(_aten._scaled_dot_product_flash_attention_for_cpu, _attention_for_cpu)
