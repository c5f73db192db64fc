"""Reports errors about precision and missing gradients that the program raises, with their place.

No error is caught. The probe examines an error when the forward pass of the watched model raises it, and when it ends
the run.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.gradient_checks import is_unscaled
from ammeter.probes.call_order.missing_gradients import Missing
from ammeter.probes.call_order.order import Order
from ammeter.probes.call_order.usage_events import UsageEvents, name_of, scale_of
from ammeter.redaction import text
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.call_site import line_in
from ammeter.torch_hooks.hook_points import AtEnd

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MAX_MESSAGE_CHARS = 300
"""Characters of an error's message in the event; messages of torch may be much longer."""

_DTYPE = re.compile(
    r"\b(?:c10::|torch\.(?:cuda\.)?)?(BFloat16|Half|Float|Double|float16|bfloat16|float32|float64|float|double)(?:Tensor)?\b"
)
_MISMATCH = re.compile(
    r"same dtype|dtypes? .{0,40}match|scalar type|but (?:got|found)|not implemented for|should be the same|mixed dtype"
    r"|can't be cast|unsafe to autocast|but expected|dtypes? not supported|unsupported dtype",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"value cannot be converted to type \S*?(Half|BFloat16) without overflow")
_RECOMPUTED = "Recomputed values for the following tensors have different metadata"
_METADATA = re.compile(r"saved metadata: (\{.*?\)\})\s*recomputed metadata: (\{.*?\)\})", re.DOTALL)
_METADATA_DTYPE = re.compile(r"'dtype': torch\.(\w+)")
_LOW = {"half", "bfloat16", "float16"}
_NAMES = {"half": "float16", "float": "float32", "double": "float64"}
_OPERATOR = (
    re.compile(r'^"(\w+)" not implemented'),
    re.compile(r"^([\w.]+)(?:\(\))?:? (?:self|Low|expected both)"),
    re.compile(r"\.(\w+) .* unsafe to"),
)
_CALL = re.compile(r"(\w+)\(")

NO_CHECKS = "No inf checks were recorded"
"""Beginning of GradScaler's errors on an optimizer without gradients, or without a step of the scaler."""

AT_UPDATE = "prior to update"
"""The part of these errors that update() has: since the last update(), the scaler has checked no gradients."""

NO_SCALE = "did not use scaler.scale("
"""Part of GradScaler's errors on unscale_() or step() before the first scale()."""

UNSCALED_TWICE = "unscale_() has already been called"
"""Beginning of GradScaler's error on a second unscale_() of an optimizer without update() between."""

NO_GRAPH = "does not require grad and does not have a grad_fn"
"""Part of the error of backward() on a loss without a graph."""


class Raised:
    def __init__(self, session: ProbeContext, events: UsageEvents, missing: Missing, order: Order) -> None:
        self._session = session
        self._events = events
        self._missing = missing
        self._order = order

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        handles = [self._session.forward.subscribe(raised=guard(self._left_forward))]
        return [*self._session.fast_path.pauses(handles), AtEnd(guard(self._at_end))]

    def _left_forward(self, _: torch.nn.Module, __: Any, ___: Any, output: Any) -> None:
        self._report(sys.exc_info()[1])

    def _at_end(self) -> None:
        self._report(sys.exc_info()[1] or getattr(sys, "last_value", None))

    def _report(self, error: BaseException | None) -> None:
        if isinstance(error, AssertionError) and str(error).startswith(NO_CHECKS):
            self._report_missing_checks(str(error), line_in(error.__traceback__))
        elif isinstance(error, AssertionError) and NO_SCALE in str(error):
            optimizer = next(iter(self._session.watched.optimizers), None)
            self._events.emit_once("usage.loss_not_scaled", optimizer=name_of(optimizer), scale=None, scaled_too=False)
        elif isinstance(error, RuntimeError) and NO_GRAPH in str(error):
            self._missing.raised(line_in(error.__traceback__))
        elif isinstance(error, RuntimeError) and str(error).startswith(UNSCALED_TWICE):
            self._report_second_unscale(line_in(error.__traceback__))
        if not isinstance(error, RuntimeError | ValueError | TypeError | NotImplementedError):
            return
        problem, dtypes = problem_in(str(error))
        kind: dict[str, Any] = {"problem": problem} if problem else {}
        if dtypes:
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            self._events.emit_once(
                "usage.unsupported_op",
                line=line_in(error.__traceback__),
                op="" if problem == "recomputed" else _operator(str(error), error.__traceback__),
                dtypes=dtypes,
                module=_module(frames),
                backward=patch.inside_backward()  # a forward pass that backward() runs again, whose frames end there
                or any(frame.f_code.co_name == "_engine_run_backward" for frame in frames),
                message=text(str(error), MAX_MESSAGE_CHARS),
                **kind,
            )

    def _report_second_unscale(self, line: str) -> None:
        """Reports the optimizer that the scaler has unscaled and not stepped."""
        watched = self._session.watched
        pairs = ((scaler, optimizer) for scaler in watched.scalers for optimizer in watched.optimizers)
        scaler, optimizer = next((pair for pair in pairs if is_unscaled(*pair)), (None, None))
        if optimizer is not None:
            data: dict[str, Any] = {"optimizer": name_of(optimizer), "scale": scale_of(scaler)}
            self._events.withdraw("usage.mixed_scale")
            self._events.emit_once("usage.mixed_scale", line=line, after="second unscale_", **data)

    def _report_missing_checks(self, message: str, line: str) -> None:
        """Reports gradients that do not exist, or an optimizer that stepped past the scaler."""
        if AT_UPDATE in message and (self._order.stepped_past_scaler() or self._missing.has_gradients()):
            return
        self._missing.checks_missing(line)


def problem_in(message: str) -> tuple[str, list[str]]:
    """What an error says about precision, and the dtypes in it.

    Returns:
        `overflow`: a number of the program is too large for a dtype. `recomputed`: checkpoint() computed tensors in
        another dtype than the forward pass. An empty text: dtypes are rejected, or, without dtypes, another error.
    """
    too_large = _TOO_LARGE.search(message)
    if too_large:
        return "overflow", [_NAMES.get(too_large[1].lower(), too_large[1].lower())]
    if _RECOMPUTED in message:
        return "recomputed", _recomputed_dtypes(message)
    return "", dtypes_in(message)


def _recomputed_dtypes(message: str) -> list[str]:
    """The dtypes of the first tensor that checkpoint() computed in another one; empty if none is of half precision."""
    for metadata in _METADATA.findall(message):
        saved, recomputed = (_METADATA_DTYPE.findall(part) for part in metadata)
        if saved != recomputed and _LOW & {*saved, *recomputed}:
            return [*saved, *recomputed]
    return []


def dtypes_in(message: str) -> list[str]:
    """The dtypes in an error about rejected dtypes; empty for other errors."""
    first = message.partition("\n")[0]
    names = [dtype.lower() for dtype in _DTYPE.findall(first)]
    if "unsafe to autocast" in first:
        return ["float16"]
    mixed = first.startswith("mixed dtype")  # from batch_norm on the CPU, for parameters that are not float32
    rejected = _MISMATCH.search(first) and (mixed or _LOW & set(names))
    return sorted({_NAMES.get(dtype, dtype) for dtype in names}) if rejected else []


def _operator(message: str, trace: TracebackType | None) -> str:
    """The operator that the error names, else the function called on the innermost line."""
    for pattern in _OPERATOR:
        match = pattern.search(message)
        if match:
            return match[1]
    last = traceback.extract_tb(trace)[-1:]
    calls = _CALL.findall(last[0].line or "") if last else []
    return calls[0] if calls else last[0].name if last else ""


def _module(frames: list[FrameType]) -> str:
    """Path of the failing module, such as 'blocks.2.fc', from the traceback's frames."""
    path, outer = "", None
    for frame in frames:
        module = frame.f_locals.get("self")
        if not isinstance(module, torch.nn.Module) or module is outer:
            continue
        if outer is not None:
            name = _name_in(outer, module)
            path = f"{path}.{name}".lstrip(".") if name else path
        outer = module
    return path


def _name_in(outer: torch.nn.Module, module: torch.nn.Module) -> str:
    return next((name for name, candidate in outer.named_modules() if candidate is module and name), "")
