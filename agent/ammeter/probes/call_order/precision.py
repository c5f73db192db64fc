"""Finds half-precision weights without master weights, and eps values that round to zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ammeter.probes.call_order.telling import Telling, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import has_numbers, unseen

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

HALF = (torch.float16, torch.bfloat16)

NAMED = 5
"""Tensors that an event names, so that it stays small; their number is always reported."""

COMPARED = 4096
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
    """Checks each optimizer after its first step, then at powers of two.

    The first step creates the optimizer's state.
    """

    def __init__(self, session: ProbeContext, telling: Telling) -> None:
        self._session = session
        self._telling = telling
        self._asked: set[int] = set()

    def asked(self, scaler: Any, optimizer: Any) -> None:
        """Reports float16 weights before the scaler's call, because GradScaler raises an error on their gradients."""
        if id(optimizer) in self._asked:
            return
        self._asked.add(id(optimizer))
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
            self._tell_weights(optimizer, refused, {}, scale=scale_of(scaler), refused=True)

    def look(self, optimizer: torch.optim.Optimizer, *, first: bool) -> None:
        """Checks a watched optimizer after a step.

        Args:
            first: whether this was its first step.
        """
        unseen(lambda: self._look(optimizer, first), ())

    def _look(self, optimizer: torch.optim.Optimizer, first: bool) -> None:
        self._judge_weights(optimizer)
        self._judge_eps(optimizer)
        if first:
            self._judge_norms()

    def _judge_weights(self, optimizer: torch.optim.Optimizer) -> None:
        half = [parameter for parameter in _trained(optimizer) if parameter.dtype in HALF]
        if not half or self._telling.told("usage.half_weights"):
            return
        largest = max(half, key=torch.Tensor.numel)
        held = _same(largest, [state for state in _kept_for(optimizer, largest) if state.dtype is torch.float32])
        self._tell_weights(optimizer, half, {} if held is None else {"held": held}, refused=False)

    def _tell_weights(self, optimizer: Any, half: list[torch.Tensor], numbers: dict[str, Any], **more: Any) -> None:
        tensors = self._session.watched.tensors
        places = dict(
            zip(
                map(id, self._session.watched.parameters(optimizer)[0]), _indices(self._session, optimizer), strict=True
            )
        )
        self._telling.once(
            "usage.half_weights",
            holds=(lambda data: data["held"] < 1) if numbers else None,
            optimizer=name_of(optimizer),
            dtypes=sorted({_word(parameter.dtype) for parameter in half}),
            count=len(half),
            of=sum(1 for _ in _trained(optimizer)),
            tensors=[tensors[places[id(parameter)]].name for parameter in half[:NAMED]],
            state=sorted({_word(tensor.dtype) for tensor in _kept_for(optimizer, half[0])}),
            **numbers,
            **more,
        )

    def _judge_eps(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            eps = group.get("eps")
            if not isinstance(eps, float) or group.get("fused"):  # a fused kernel computes in float32
                continue
            for parameter in group["params"]:
                kept = [state.dtype for state in _kept_for(optimizer, parameter)]
                used = next((dtype for dtype in kept if vanishes(eps, dtype)), None)
                if used is not None:
                    data: dict[str, Any] = {"where": name_of(optimizer), "eps": eps, "dtype": _word(used)}
                    self._telling.once("usage.eps_below_dtype", **data)
                    return

    def _judge_norms(self) -> None:
        for module, name in self._norms():
            weight = next(
                (tensor for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))), None
            )
            eps = getattr(module, "eps", None)
            if (
                weight is None
                or not isinstance(eps, float)
                or not vanishes(eps, weight.dtype)
                or not has_numbers(weight)
            ):
                continue
            kind = type(module).__name__
            data: dict[str, Any] = {"where": name or kind, "eps": eps, "dtype": _word(weight.dtype)}
            data["bad"] = _bad_share(kind, weight, eps)
            self._telling.once("usage.eps_below_dtype", holds=lambda data: data["bad"] > 0, **data)

    def _norms(self) -> Iterator[tuple[torch.nn.Module, str]]:
        for ref in self._session.watched.models:
            model = ref()
            for name, module in model.named_modules() if model is not None else ():
                if type(module).__module__.startswith("torch.nn.") and type(module).__name__ in _NORMS:
                    yield module, name


def vanishes(eps: float, dtype: torch.dtype) -> bool:
    """Whether eps is at most half of the dtype's smallest number and rounds to zero."""
    if not dtype.is_floating_point or eps <= 0:
        return False
    form = torch.finfo(dtype)
    return eps <= form.smallest_normal * form.eps / 2


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


def _kept_for(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> list[torch.Tensor]:
    """Floating-point tensors with the parameter's shape in the optimizer's state or in its list attributes."""
    state = optimizer.state.get(parameter, {})
    listed = [tensor for value in vars(optimizer).values() if isinstance(value, list) for tensor in _flat(value)]
    found = [*(state.values() if isinstance(state, dict) else ()), *listed]
    return [
        tensor
        for tensor in found
        if isinstance(tensor, torch.Tensor)
        and tensor.is_floating_point()
        and tensor.shape == parameter.shape
        and tensor is not parameter
    ]


def _flat(values: list[Any]) -> list[Any]:
    return [element for value in values for element in (value if isinstance(value, list) else [value])]


def _same(weight: torch.Tensor, kept: list[torch.Tensor]) -> Transfer | None:
    """The largest share of a weight's elements that equal a rounded float32 tensor.

    The share is 1 for the weight's master.
    """
    if not kept or not all(map(has_numbers, (weight, *kept))):
        return None
    part = weight.detach().flatten()[:COMPARED]
    shares = [(candidate.detach().flatten()[:COMPARED].to(weight.dtype) == part).float().mean() for candidate in kept]
    return async_copy.of(torch.stack(shares).max())


def _indices(session: ProbeContext, optimizer: Any) -> list[int]:
    return session.watched.parameters(optimizer)[1]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
