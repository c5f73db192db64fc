"""Computes chains of sensitive operators again in float32, beside the ones that run, to measure their error.

A reference begins where autocast on CUDA runs an operator in float32 although it runs in half precision here, and where
integers or positions become numbers. Operators that follow are computed from it, until a matrix product ends the chain,
whose inputs autocast rounds in any case. The numbers of the program are only read.
"""

from __future__ import annotations

from time import thread_time
from typing import Any, NamedTuple

import msgspec
import torch

from ammeter.probes.kernels.reference_ops import LAYOUT, PARTS, POINTWISE, POSITIONS, PRODUCT, START, TRIG
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.call_site import Spot

HALF = (torch.float16, torch.bfloat16)

MAX_ELEMENTS = 2**20
"""Elements of a tensor with a reference: the positions of a long sequence, or the scores of a router."""

MAX_ALL_ELEMENTS = 2**22
"""Elements of all references in one forward pass: 16 MiB."""

MAX_ROUNDINGS = 8
"""Operators in half precision in one chain. Each rounds by 2^-8 at most in bfloat16, and by less than half of that on
average: a chain that loses nothing else stays below 1 %."""

MAX_SECONDS = 0.02
"""Seconds of CPU time after which no more operators are followed in one forward pass."""

MAX_MEASURED = 64
"""Operators in one forward pass whose error is measured; the layers of a model repeat them."""


class Rounded(NamedTuple):
    """An operator that ran in half precision, and its line."""

    op: str
    dtype: torch.dtype
    spot: Spot | None


class Reference(msgspec.Struct):
    """The float32 values of a tensor.

    Attributes:
        tensor: the tensor itself, kept so that its memory is not used again for another one.
        values: the tensor itself if it is exact.
        is_positions: whether it consists of positions and what they were multiplied with, and of nothing else.
        rounded: where the chain first ran in half precision; None if it is exact.
        roundings: operators behind it since then.
    """

    tensor: torch.Tensor
    values: torch.Tensor
    is_positions: bool
    rounded: Rounded | None = None
    roundings: int = 0

    @property
    def is_exact(self) -> bool:
        return self.values is self.tensor


class Measured(msgspec.Struct):
    """The error of one operator.

    Attributes:
        rounded: where its chain first ran in half precision.
        norms: of the difference to its result in float32, and of this result.
    """

    op: str
    module: str
    is_positions: bool
    rounded: Rounded
    spot: Spot | None
    norms: Transfer


class References:
    """The references of one forward pass.

    Attributes:
        measured: the errors of sensitive operators.
        seconds: what this has taken.
    """

    def __init__(self) -> None:
        self.measured: list[Measured] = []
        self.seconds = 0.0
        self._known: dict[Any, Reference] = {}
        self._elements = 0

    def observe(self, func: Any, args: Any, kwargs: Any, output: Any, module: str) -> None:
        """Follows an operator that has run."""
        if self.seconds > MAX_SECONDS:
            return
        began = thread_time()
        part = PARTS.get(getattr(func, "_overloadpacket", func))
        if self._known and getattr(func, "_schema", None) is not None and func._schema.is_mutable:
            self._forget(args, kwargs)
        elif part is not None and type(output) is torch.Tensor and _is_followed(output):
            self._follow(_Call(func, part, args, kwargs, output), module)
        self.seconds += thread_time() - began

    def _follow(self, call: _Call, module: str) -> None:
        call.found = [self._of(tensor) for tensor in call.inputs]
        reference = self._next(call) if call.output.numel() <= MAX_ELEMENTS else None
        if reference is None:
            return
        if call.part in (START, TRIG) and reference.rounded is not None and any(not one.is_exact for one in call.known):
            self._measure(call, reference, reference.rounded, module)
        if call.part is not TRIG:
            self._known[_key(call.output)] = reference
            self._elements += 0 if reference.is_exact else reference.values.numel()

    def _next(self, call: _Call) -> Reference | None:
        """The reference of an operator's output, None if it has none."""
        if not call.is_followed:
            return None
        known = call.known
        is_positions = call.part is POSITIONS or all(
            one.is_positions if one is not None else _may_be_factor(tensor, call.output)
            for tensor, one in zip(call.inputs, call.found, strict=True)
        )
        if not is_positions and call.part is not START and all(one.is_positions for one in known):
            return None  # positions among other numbers, such as a mask or a bias of scores
        if call.part is START:
            is_positions = is_positions and bool(known)
        if not call.is_half and all(one.is_exact for one in known):
            return Reference(call.output, call.output, is_positions)
        rounded = next((one.rounded for one in known if one.rounded is not None), None) or call.rounded()
        roundings = max((one.roundings for one in known), default=0) + (call.part is not LAYOUT)
        if rounded is None or roundings > MAX_ROUNDINGS or self._elements + call.output.numel() > MAX_ALL_ELEMENTS:
            return None
        values = self._computed(call)
        if values is None or values.shape != call.output.shape:
            return None
        return Reference(call.output, values, is_positions, rounded, roundings)

    def _computed(self, call: _Call) -> torch.Tensor | None:
        """Computes an operator from the references of its inputs; None if it has no kernel for that."""
        given = {name: torch.float32 if value in HALF else self._value(value) for name, value in call.kwargs.items()}
        try:
            result = call.func(*(self._value(value) for value in call.args), **given)
        except (RuntimeError, TypeError, ValueError):
            return None
        return result if isinstance(result, torch.Tensor) else None

    def _value(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._value(member) for member in value)
        if not isinstance(value, torch.Tensor):
            return value
        reference = self._of(value)
        if reference is not None:
            return reference.values
        return value.float() if value.dtype in HALF else value

    def _of(self, tensor: torch.Tensor) -> Reference | None:
        return self._known.get(_key(tensor)) if _is_followed(tensor) else None

    def _forget(self, args: Any, kwargs: Any) -> None:
        """Drops the references of tensors that an operator may have changed in place."""
        changed = {_memory(tensor) for tensor in _tensors((args, tuple(kwargs.values())))}
        self._known = {key: kept for key, kept in self._known.items() if _memory(kept.tensor) not in changed}

    def _measure(self, call: _Call, reference: Reference, rounded: Rounded, module: str) -> None:
        if len(self.measured) < MAX_MEASURED:
            norm, values = torch.linalg.vector_norm, reference.values
            norms = torch.stack([norm(call.output.to(values.dtype) - values), norm(values)])
            of = reference.is_positions, rounded, call_site.spot()
            self.measured.append(Measured(call.op, module, *of, async_copy.of(norms)))


class _Call:
    """An operator that has run.

    Attributes:
        inputs: the tensors that it received.
        found: their references.
        is_half: whether it received or returned half precision.
    """

    def __init__(self, func: Any, part: str, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        self.func, self.part = func, part
        self.args, self.kwargs, self.output = args, kwargs, output
        self.inputs = _tensors(args)
        self.found: list[Reference | None] = []
        self.is_half = output.dtype in HALF or any(tensor.dtype in HALF for tensor in self.inputs)

    @property
    def op(self) -> str:
        return str(self.func).removeprefix("aten.").partition(".")[0].strip("_")

    @property
    def known(self) -> list[Reference]:
        return [reference for reference in self.found if reference is not None]

    @property
    def is_followed(self) -> bool:
        """Whether it begins a chain or continues one."""
        if self.part is PRODUCT:
            is_outer = self.inputs[0].shape[-1] == 1
            return is_outer and bool(self.known) and all(one.is_positions for one in self.known)
        if self.known or self.part is POSITIONS:
            return True
        if self.part is START:
            return self.output.dtype in HALF and any(tensor.dtype in HALF for tensor in self.inputs)
        return self.part is POINTWISE and any(map(_is_integer, self.inputs))

    def rounded(self) -> Rounded | None:
        """Where a chain begins that runs in half precision from here on."""
        dtypes = [self.output.dtype, *(tensor.dtype for tensor in self.inputs)]
        half = next((dtype for dtype in dtypes if dtype in HALF), None)
        return None if half is None else Rounded(self.op, half, call_site.spot())


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _is_followed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of plain numbers: dense, and of a floating-point type up to float32."""
    kind = tensor.dtype
    return (kind in HALF or kind in (torch.float32, torch.complex64)) and tensor.layout is torch.strided


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype is not torch.bool


def _may_be_factor(tensor: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether a tensor beside positions may be frequencies: it needs no gradient, or is smaller than the output."""
    return not tensor.requires_grad or tensor.numel() < output.numel()


def _key(tensor: torch.Tensor) -> tuple[int, torch.dtype, torch.Size, tuple[int, ...]]:
    """What a tensor has in common with other objects for it, such as the one that autograd makes of a view."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
