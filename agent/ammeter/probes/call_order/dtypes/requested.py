"""Compares the precision that the program asks for with the one in which its loss is computed.

A program asks by autocast, and by a scaler that is enabled. The graph of the loss shows what runs: under autocast it
has nodes in float16 or bfloat16. Compiled code and Functions of the program hide dtypes. A graph with one of them is
judged only if autocast cannot concern the device at all, and by the matrix products that are visible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.dtypes import graph_dtype
from ammeter.probes.call_order.dtypes.graph_dtype import Precision
from ammeter.probes.call_order.marks import roots
from ammeter.probes.call_order.usage_events import UsageEvents, is_power_of_two, scale_of
from ammeter.probes.origin.floats import inside
from ammeter.recording import returned_losses
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site, patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

HALF = (torch.float16, torch.bfloat16)

MIN_SAMPLES = 3
"""Consecutive losses in float32 that show more than a single step without autocast."""

FIRST_SAMPLES = 8
"""First losses that are sampled; later ones at powers of two, and each eighth while they are in half precision, in
whose graphs the search ends after a few nodes."""

MIN_OUTSIDE = 12
"""Consecutive losses in float32 after a phase in half precision, if autocast is still entered and no scaler asks for
float16."""

TRIAL_STEPS = 200
"""Steps after which a scaler without any autocast is reported. Short trials of a loop often leave autocast out."""

MIN_UNHEARD = 8
"""Forward passes without any backward(), more than a step needs for its networks: its calls are not observed."""

DEVICES = ("cpu", "cuda", "xpu", "mps")
"""Types of devices whose autocast is read in a forward pass."""

MIN_UNENTERED = 8
"""Contexts that were created and not entered. One or two may be kept for the evaluation."""


class Context:
    """The autocast contexts of one device and dtype.

    Attributes:
        line: line that created the first one.
        created, entered: number of contexts that were created enabled, and number of entries with gradients.
        refused: number of contexts that torch disabled, because it cannot autocast there.
    """

    __slots__ = ("created", "entered", "line", "refused")

    def __init__(self) -> None:
        self.line = ""
        self.created = self.entered = self.refused = 0


class Requested:
    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._contexts: dict[tuple[str, torch.dtype], Context] = {}
        self._disabled_line = self._float32_line = ""
        self._was_half = self._has_entered = False
        """Whether the last sampled loss was in half precision, and whether autocast was entered before that ended."""
        self._losses = 0
        self._in_float32 = 0
        self._sampled_step = -1
        self._scaled_step = -1
        self._unheard = 0
        """Forward passes in training, as long as no backward() and no scale() was observed."""
        self._is_heard = False

        self._rechecks = 0
        """Losses that are sampled next, because the one before was the first in float32."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kind = torch.amp.autocast_mode.autocast
        return self._session.fast_path.pauses(
            [
                patch.method(kind, "__init__", after=guard(self._created)),
                patch.method(kind, "__enter__", after=guard(self._entered)),
                patch.backward(before=guard(self._backward)),
                patch.function(torch.autograd, "grad", before=guard(self._grad)),
                self._session.forward.subscribe(trains=guard(self._forward), after=guard(self._after_forward)),
            ]
        )

    def after_scale(self, scaler: Any, outputs: Any) -> None:
        """Samples the loss of an enabled scaler."""
        self._is_heard = True
        if scaler.is_enabled():
            self._scaled_step = self._session.row.step
            self._sample(outputs, scaler)

    def _created(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        context = args[0]
        enabled = args[3] if len(args) > 3 else kwargs.get("enabled", True)
        if context.fast_dtype is torch.float32 and torch.is_grad_enabled():
            self._float32_line = self._float32_line or call_site.line()
        if context.fast_dtype not in HALF or not torch.is_grad_enabled():
            return
        if not enabled:
            self._disabled_line = self._disabled_line or call_site.line()
            return
        known = self._of(context)
        known.line = known.line or call_site.line()
        known.created += 1
        known.refused += not context._enabled

    def _entered(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        context = args[0]
        if context._enabled and context.fast_dtype in HALF and torch.is_grad_enabled():
            self._of(context).entered += 1

    def _of(self, context: Any) -> Context:
        return self._contexts.setdefault((str(context.device), context.fast_dtype), Context())

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Samples a loss that no scaler has scaled, if the program asks for half precision at all."""
        self._is_heard = True
        if self._is_asked() and self._scaled_step != self._session.row.step and not patch.inside_backward():
            is_scaled = self._session.row.raw.get("scaled")
            scalers = self._session.watched.scalers if is_scaled else ()
            self._sample(patch.outputs(args, kwargs), next((one for one in scalers if one.is_enabled()), None))

    def _is_asked(self) -> bool:
        return bool(self._contexts or self._float32_line)

    def _forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Counts a context as entered that no call has shown: autocast is on in this forward pass."""
        if not _is_any_enabled():
            return
        for device in filter(torch.is_autocast_enabled, DEVICES):
            key = (device, torch.get_autocast_dtype(device))
            if key[1] in HALF and key not in self._contexts:  # torch.set_autocast_enabled() has switched it on
                dtype = str(key[1]).removeprefix("torch.")
                self._session.emit("autocast.entered", {"device": device, "dtype": dtype, "grad": True})
            if key[1] in HALF and not (context := self._contexts.setdefault(key, Context())).created:
                context.entered += 1

    def _after_forward(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Samples an output instead of its loss, in a program of which no backward() is observed."""
        if not self._is_heard and module.training and torch.is_grad_enabled():
            self._unheard += 1
            if self._unheard > MIN_UNHEARD and self._is_asked():
                self._sample([tensor for _, tensor in inside(output)], None)

    def _grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Samples the loss of a program that never calls backward()."""
        if not self._session.losses.are_of_backward:
            loss = returned_losses.loss_of(args, kwargs, self._session.watched)
            if loss is not None and not returned_losses.is_transforming():
                self._backward((loss,), {})

    def _sample(self, outputs: Any, scaler: Any) -> None:
        step = self._session.row.step
        if step == self._sampled_step or self._events.was_emitted("usage.not_as_asked"):
            return
        self._sampled_step = step
        self._losses += 1
        if not self._is_due(step):
            return
        self._rechecks = max(0, self._rechecks - 1)
        found = unseen(lambda: graph_dtype.of_losses(roots(outputs), any_half=scaler is None), ())
        if found is None:
            return
        ran = found.dtype
        if ran is torch.float32 and self._was_half:
            self._begin_anew()
        self._was_half = ran is not torch.float32
        self._in_float32 = self._in_float32 + 1 if ran is torch.float32 else 0
        if scaler is not None and ran is torch.bfloat16 and self._asked(torch.float16) and not found.is_partly_hidden:
            self._report("other-dtype", ran, scaler)
        elif self._in_float32 >= MIN_SAMPLES and (reason := self._reason(scaler, found)):
            self._report(reason, ran, scaler)

    def _is_due(self, step: int) -> bool:
        is_late = self._in_float32 >= MIN_SAMPLES and step >= TRIAL_STEPS
        is_next = self._losses <= FIRST_SAMPLES or is_power_of_two(self._losses) or self._rechecks > 0
        is_phase = self._has_entered and 0 < self._in_float32 < MIN_OUTSIDE
        return is_next or is_late or is_phase or (self._was_half and self._losses % FIRST_SAMPLES == 0)

    def _begin_anew(self) -> None:
        """Discards what was counted while the loss was in half precision, and samples the next losses.

        The lines of the contexts are kept, because a context may be created once and entered in every step.
        """
        self._rechecks = MIN_SAMPLES
        self._session.fast_path.avoid(MIN_SAMPLES + 1)
        self._disabled_line = self._float32_line = ""
        for context in self._contexts.values():
            self._has_entered = self._has_entered or context.entered > 0
            context.created = context.entered = context.refused = 0

    def _asked(self, dtype: torch.dtype) -> bool:
        return any(context.entered for (_, asked), context in self._contexts.items() if asked is dtype)

    def _reason(self, scaler: Any, found: Precision) -> str:
        """Returns why a loss was computed in float32; '' if the program may have asked for that."""
        contexts = self._contexts.items()
        devices = self._devices()
        if any(context.refused for _, context in contexts):
            return "refused"
        entered = {device for (device, _), context in contexts if context.entered}
        if entered and devices and not entered & devices:
            return "wrong-device"
        created = sum(context.created for _, context in contexts)
        is_off = scaler is not None and not (entered or created) and (self._disabled_line or self._float32_line)
        is_hidden = found.is_mostly_hidden if is_off else found.is_partly_hidden
        if is_hidden and not self._has_entered:  # what is visible now was in half precision then
            return ""
        if scaler is None:
            if self._has_entered and entered:
                is_asked = bool(self._disabled_line)  # for float32, in this phase
                is_long = self._in_float32 >= MIN_OUTSIDE
                return "outside" if is_long and not is_asked and self._trains_all_at_once() else ""
            return "not-entered" if created >= MIN_UNENTERED and not entered else ""
        if entered:
            return "outside"
        if created:
            return "not-entered"
        if self._disabled_line:
            return "disabled"
        if self._float32_line:
            return "float32"
        if self._has_entered:
            return "outside"
        return "no-autocast" if self._session.row.step >= TRIAL_STEPS else ""

    def _report(self, reason: str, ran: torch.dtype, scaler: Any) -> None:
        (device, asked), context = self._chosen(reason)
        line = {"disabled": self._disabled_line, "float32": self._float32_line}.get(reason, context.line)
        data: dict[str, Any] = {"reason": reason, "asked": _name(asked), "ran": _name(ran), "device": device}
        if scaler is not None:
            data["scale"] = scale_of(scaler)
        self._events.emit_once("usage.not_as_asked", line=line, **data, trained_on=sorted(self._devices()))

    def _chosen(self, reason: str) -> tuple[tuple[str, torch.dtype], Context]:
        """Returns the contexts that the reason is about; without one, what a scaler asks for."""
        for key, context in self._contexts.items():
            if (reason != "refused" or context.refused) and (reason != "other-dtype" or key[1] is torch.float16):
                return key, context
        return ("", torch.float16), Context()

    def _trains_all_at_once(self) -> bool:
        """Whether all watched tensors get their gradients from one loss.

        Otherwise autocast may be entered for another network, or for a part of the model without gradients.
        """
        watched = self._session.watched
        return len(watched.optimizers) == 1 and all(tensor.requires_grad for _, tensor in watched.alive())

    def _devices(self) -> set[str]:
        """Returns the types of the devices of the watched tensors."""
        return {tensor.device.type for _, tensor in self._session.watched.alive()}


_is_any_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
