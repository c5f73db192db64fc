"""Records the loss scale of DeepSpeed, Megatron-LM and fairseq, which have no GradScaler.

    from ammeter.integrations.loss_scalers import follow
    follow(run, engine.optimizer)

Their scalers multiply the loss, tell whether gradients overflowed, and skip the step then. The optimizer that Ammeter
watches has float32 copies of the weights, whose gradients show neither.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ammeter.integrations.loaded import drivers
from ammeter.integrations.optimizer_chain import chain
from ammeter.recording.own_scale import REPORTED
from ammeter.recording.row import Row
from ammeter.recording.scaler_updates import Update
from ammeter.recording.session import Session
from ammeter.tensors import async_copy
from ammeter.torch_hooks import patch
from ammeter.watching.handle import Run

HOLDERS = ("loss_scaler", "grad_scaler", "scaler")
"""Attributes of an optimizer of DeepSpeed with ZeRO, of Megatron-LM and of fairseq that hold its scaler."""

SCALERS = {
    "deepspeed.runtime.fp16.loss_scaler": "LossScalerBase",
    "deepspeed.runtime.fp16.fused_optimizer": "FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer": "FP16_UnfusedOptimizer",
    "megatron.core.optimizer.grad_scaler": "MegatronGradScaler",
    "fairseq.optim.dynamic_loss_scaler": "DynamicLossScaler",
}
"""Module -> its class that is followed below `ammeter run`."""


Overflow = Callable[[tuple[Any, ...], dict[str, Any], Any], bool | None]
"""Whether gradients overflowed, from arguments and result of a method; None if only a device knows."""


class Interface(NamedTuple):
    """How a scaler is read.

    Attributes:
        scale: its attribute with the scale, a number or a tensor.
        updates: methods that end a step -> how they tell whether gradients overflowed.
    """

    scale: str
    updates: dict[str, Overflow]


def follow(run: Run, scaler: Any) -> None:
    """Records the scale, overflows and skipped steps of a scaler, or of the scaler that an optimizer has.

    Args:
        run: the handle of the run, from ammeter.watch().
        scaler: DeepSpeed's loss scaler or `engine.optimizer`, Megatron-LM's grad scaler or optimizer, or fairseq's
            DynamicLossScaler or optimizer.

    Raises:
        TypeError: it is none of these.
    """
    found = next((one for one in (scaler, *_held(scaler)) if interface_of(one) is not None), None)
    if found is None:
        raise TypeError(f"scaler is a {type(scaler).__name__}; follow() takes a loss scaler, or an optimizer with one")
    if run._session is not None:
        run._session.handles += _Followed(run._session, found).attach()


def follow_loaded(run: Run) -> None:
    """Follows the scaler of the program if there is exactly one, for a run that `ammeter run` has started."""
    scalers = [scaler for module, kind in SCALERS.items() for scaler in drivers(module, kind)]
    if len(scalers) == 1:
        follow(run, scalers[0])


def follow_inside(run: Run, optimizer: Any) -> None:
    """Follows the scaler that an optimizer has, or one inside of it; nothing if there is none."""
    for candidate in chain(optimizer):
        if any(interface_of(one) is not None for one in (candidate, *_held(candidate))):
            follow(run, candidate)
            return


def interface_of(scaler: Any) -> Interface | None:
    """Returns the interface of a scaler, None if it has none of those that are known."""
    if isinstance(scaler, torch.amp.GradScaler):
        return None
    if hasattr(scaler, "update_scale") and hasattr(scaler, "cur_scale"):
        return Interface("cur_scale", {"update_scale": _argument})
    if hasattr(scaler, "_update_scale") and hasattr(scaler, "loss_scale"):
        return Interface("loss_scale", {"_update_scale": _argument})
    if hasattr(scaler, "check_overflow") and hasattr(scaler, "loss_scale"):
        return Interface("loss_scale", {"check_overflow": _raised, "update": _never})
    if hasattr(scaler, "update") and isinstance(getattr(scaler, "scale", None), torch.Tensor):
        return Interface("scale", {"update": _argument})
    return None


def _held(optimizer: Any) -> list[Any]:
    return [getattr(optimizer, name) for name in HOLDERS if getattr(optimizer, name, None) is not None]


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> bool | None:
    """Reads the only argument, without waiting for a device."""
    overflow = args[1] if len(args) > 1 else next(iter(kwargs.values()), False)
    number = async_copy.known(overflow) if isinstance(overflow, torch.Tensor) else bool(overflow)
    return None if number is None else number != 0


def _raised(_: tuple[Any, ...], __: dict[str, Any], result: Any) -> bool:
    """Whether the method has raised an error, such as OverflowError."""
    return result is patch.RAISED


def _never(_: tuple[Any, ...], __: dict[str, Any], ___: Any) -> bool:
    return False


class _Followed:
    """A scaler that a session follows."""

    def __init__(self, session: Session, scaler: Any) -> None:
        self._session = session
        self._own = weakref.ref(scaler)
        self._interface = interface_of(scaler) or Interface("", {})
        self._is_seen = False
        self._good_steps = 0
        self._before: async_copy.Transfer | None = None

    def attach(self) -> list[Any]:
        self._session.fast_path.disable()  # it records no scale
        guard = self._session.guard("loss_scaler", any_thread=False)
        kind = type(self._own())
        handles = []
        for name, overflowed in self._interface.updates.items():
            before, after = guard(self._updating), guard(self._updated(overflowed))
            handles.append(patch.method(kind, name, before=before, after=after, always=True))
        return handles

    def _scale(self) -> async_copy.Transfer:
        scale = getattr(self._own(), self._interface.scale)
        return async_copy.of(scale) if isinstance(scale, torch.Tensor) else async_copy.number(float(scale))

    def _updating(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._before = self._scale() if args[0] is self._own() else None

    def _updated(self, overflowed: Overflow) -> Callable[..., None]:
        def updated(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            scale, self._before = self._before, None
            if args[0] is not self._own() or scale is None:
                return
            row, overflows = self._session.row, overflowed(args, kwargs, result)
            if overflows is None or ("updates" in row.raw and REPORTED not in row.raw):  # of a GradScaler
                return
            row.raw[REPORTED] = True
            if self._scales(scale):
                self._record(row, scale, overflows=overflows)
            if overflows:
                self._session.skip_step()

        return updated

    def _scales(self, scale: async_copy.Transfer) -> bool:
        """Whether this scaler has been seen with a scale other than 1, which that of bfloat16 always has."""
        if not self._is_seen and not (scale.on_host and scale.number() == 1.0):
            self._is_seen = True
            data = {"enabled": True, "scale": scale.number() if scale.on_host else None, "own": True}
            self._session.emit("scaler.seen", data)
        return self._is_seen

    def _record(self, row: Row, scale: async_copy.Transfer, *, overflows: bool) -> None:
        found_inf, after = async_copy.number(float(overflows)), self._scale()
        update = Update(0, scale, async_copy.number(self._good_steps), after=after)
        update.found_infs = {id(optimizer): [found_inf] for optimizer in self._session.watched.optimizers}
        for transfer in (scale, after):
            row.wait_for(transfer)
        row.raw["updates"] = [update]
        changes = scale.on_host and after.on_host and scale.number() != after.number()
        self._good_steps = 0 if overflows or changes else self._good_steps + 1
