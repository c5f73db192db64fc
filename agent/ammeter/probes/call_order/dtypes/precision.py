"""Finds half-precision weights without master weights, and eps values that round to zero."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ammeter.preparation.optimizer_state import compensates
from ammeter.probes.call_order.usage_events import UsageEvents, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import has_numbers, unseen

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

HALF = (torch.float16, torch.bfloat16)

MAX_NAMED_TENSORS = 5
"""Tensors that an event names, so that it stays small; their number is always reported."""

MAX_COMPARED_ELEMENTS = 4096
"""Elements of a weight that are compared with its possible float32 master, to bound the cost."""

_NORMS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "BatchNorm1d": lambda zeros, eps: functional.batch_norm(zeros, None, None, training=True, eps=eps),
    "BatchNorm2d": lambda zeros, eps: functional.batch_norm(zeros, None, None, training=True, eps=eps),
    "BatchNorm3d": lambda zeros, eps: functional.batch_norm(zeros, None, None, training=True, eps=eps),
    "InstanceNorm1d": lambda zeros, eps: functional.instance_norm(zeros, eps=eps),
    "InstanceNorm2d": lambda zeros, eps: functional.instance_norm(zeros, eps=eps),
    "InstanceNorm3d": lambda zeros, eps: functional.instance_norm(zeros, eps=eps),
    "LayerNorm": lambda zeros, eps: functional.layer_norm(zeros, (2,), eps=eps),
    "GroupNorm": lambda zeros, eps: functional.group_norm(zeros, 1, eps=eps),
    "RMSNorm": lambda zeros, eps: functional.rms_norm(zeros, (2,), eps=eps),
}
"""torch's normalization functions, which are called on an input without variance.

A call shows whether eps vanishes: some of them keep eps in float32 independent of the dtype, depending on the device.
"""


class Precision:
    """Checks each optimizer after its first step, at powers of two, and when a parameter has a new dtype.

    The first step creates the optimizer's state.
    """

    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._checked: set[int] = set()
        self._dtypes: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[torch.dtype]] = weakref.WeakKeyDictionary()

    def before_scaler_use(self, scaler: Any, optimizer: Any) -> None:
        """Reports float16 weights before the scaler's call, because GradScaler raises an error on their gradients."""
        if id(optimizer) in self._checked:
            return
        self._checked.add(id(optimizer))
        unseen(lambda: self._judge_refused(scaler, optimizer), ())

    def _judge_refused(self, scaler: Any, optimizer: Any) -> None:
        sharded = "sharded" in type(scaler).__name__.lower()
        if sharded or getattr(optimizer, "_step_supports_amp_scaling", False):
            return
        refused = [
            parameter
            for parameter in _trained(optimizer)
            if parameter.dtype is torch.float16 and parameter.grad is not None
        ]
        if refused:
            self._report_weights(optimizer, refused, {}, scale=scale_of(scaler), refused=True)

    def check(self, optimizer: torch.optim.Optimizer, *, first: bool) -> None:
        """Checks a watched optimizer after a step.

        Args:
            first: whether this was its first step.
        """
        unseen(lambda: self._check(optimizer, first), ())

    def has_new_dtype(self, optimizer: torch.optim.Optimizer, steps: int) -> bool:
        """Whether a parameter has a dtype that none had at the last check. The parameters take turns."""
        group = optimizer.param_groups[steps % len(optimizer.param_groups)]["params"]
        known = self._dtypes.get(optimizer)
        return known is not None and bool(group) and group[steps % len(group)].dtype not in known

    def _check(self, optimizer: torch.optim.Optimizer, first: bool) -> None:
        self._dtypes[optimizer] = {parameter.dtype for group in optimizer.param_groups for parameter in group["params"]}
        self._judge_weights(optimizer)
        self._judge_eps(optimizer)
        if first:
            self._judge_norms()

    def _judge_weights(self, optimizer: torch.optim.Optimizer) -> None:
        half = [parameter for parameter in _trained(optimizer) if parameter.dtype in HALF]
        if not half or self._events.was_emitted("usage.half_weights") or compensates(optimizer):
            return
        largest = max(half, key=torch.Tensor.numel)
        states = [state for state in _state_tensors(optimizer, largest) if state.dtype is torch.float32]
        share = _equal_share(largest, states)
        self._report_weights(optimizer, half, {} if share is None else {"held": share}, refused=False)

    def _report_weights(self, optimizer: Any, half: list[torch.Tensor], numbers: dict[str, Any], **more: Any) -> None:
        tensors = self._session.watched.tensors
        parameters, indices = self._session.watched.parameters(optimizer)
        places = dict(zip(map(id, parameters), indices, strict=True))
        self._events.emit_once(
            "usage.half_weights",
            confirm=(lambda data: data["held"] < 1) if numbers else None,
            optimizer=name_of(optimizer),
            dtypes=sorted({_dtype_name(parameter.dtype) for parameter in half}),
            count=len(half),
            of=sum(1 for _ in _trained(optimizer)),
            tensors=[tensors[places[id(parameter)]].name for parameter in half[:MAX_NAMED_TENSORS]],
            state=sorted({_dtype_name(tensor.dtype) for tensor in _state_tensors(optimizer, half[0])}),
            **numbers,
            **more,
        )

    def _judge_eps(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            eps = group.get("eps")
            if not isinstance(eps, float):
                continue
            for parameter in group["params"]:
                dtypes = [state.dtype for state in _state_tensors(optimizer, parameter)]
                if group.get("fused"):  # a fused kernel computes in float32
                    dtypes = [torch.promote_types(dtype, torch.float32) for dtype in dtypes]
                narrow = next((dtype for dtype in dtypes if vanishes(eps, dtype)), None)
                if narrow is not None:
                    data: dict[str, Any] = {"where": name_of(optimizer), "eps": eps, "dtype": _dtype_name(narrow)}
                    self._events.emit_once("usage.eps_below_dtype", **data)
                    return

    def _judge_norms(self) -> None:
        for module, name in self._norms():
            weight = next(
                (tensor for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))), None
            )
            eps = getattr(module, "eps", None)
            if weight is None or not isinstance(eps, float):
                continue
            if not vanishes(eps, weight.dtype) or not has_numbers(weight):
                continue
            kind = type(module).__name__
            data: dict[str, Any] = {"where": name or kind, "eps": eps, "dtype": _dtype_name(weight.dtype)}
            data["bad"] = _bad_share(kind, weight, eps)
            self._events.emit_once("usage.eps_below_dtype", confirm=lambda data: data["bad"] > 0, **data)

    def _norms(self) -> Iterator[tuple[torch.nn.Module, str]]:
        for ref in self._session.watched.models:
            model = ref()
            for name, module in model.named_modules() if model is not None else ():
                if type(module).__module__.startswith("torch.nn.") and type(module).__name__ in _NORMS:
                    yield module, name


def vanishes(eps: float, dtype: torch.dtype) -> bool:
    """Whether eps is zero, or at most half of the dtype's smallest number, which rounds to zero."""
    if not dtype.is_floating_point or eps < 0:
        return False
    info = torch.finfo(dtype)
    return eps <= info.smallest_normal * info.eps / 2


def _bad_share(kind: str, weight: torch.Tensor, eps: float) -> Transfer:
    """Share of NaN that a normalization returns for an input without variance.

    The input has the dtype and the device of the weight.
    """
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        zeros = torch.zeros(
            (2, 2, 2) if kind.startswith(("Inst", "Group")) else (2, 2), dtype=weight.dtype, device=weight.device
        )
        return async_copy.of(_NORMS[kind](zeros, eps).isnan().float().mean())


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad)


def _state_tensors(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> list[torch.Tensor]:
    """Floating-point tensors with the parameter's shape in the optimizer's state or in its list attributes."""
    state = optimizer.state.get(parameter, {})
    listed = [tensor for value in vars(optimizer).values() if isinstance(value, list) for tensor in _flat(value)]
    candidates = [*(state.values() if isinstance(state, dict) else ()), *listed]
    return [
        tensor
        for tensor in candidates
        if isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.shape == parameter.shape
        and tensor is not parameter
    ]


def _flat(values: list[Any]) -> list[Any]:
    return [element for value in values for element in (value if isinstance(value, list) else [value])]


def _equal_share(weight: torch.Tensor, states: list[torch.Tensor]) -> Transfer | None:
    """The largest share of a weight's elements that equal a rounded float32 tensor.

    The share is 1 for the weight's master.
    """
    if not states or not all(map(has_numbers, (weight, *states))):
        return None
    part = weight.detach().flatten()[:MAX_COMPARED_ELEMENTS]
    parts = (state.detach().flatten()[:MAX_COMPARED_ELEMENTS].to(weight.dtype) for state in states)
    return async_copy.of(torch.stack([(state_part == part).float().mean() for state_part in parts]).max())


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
