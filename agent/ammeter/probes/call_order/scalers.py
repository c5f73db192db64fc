"""Checks that scalers are created once, restored on resume, enabled when needed and useful."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ammeter.preparation.notes import OPTIMIZER, SCALER, Restored
from ammeter.probes.call_order.marks import dtypes, nodes, roots
from ammeter.probes.call_order.usage_events import UsageEvents, is_power_of_two, name_of
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

DEFAULT_SCALE = 65536.0
"""Default initial scale of GradScaler."""

MAX_FIRST_WALKS = 4
MAX_NODES = 1024
"""Scaled losses whose graph is searched for dtypes, later only at powers of two, and the nodes searched in each."""


class Scalers:
    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._known: dict[int, weakref.ref[Any]] = {}
        """id of an optimizer -> its scaler."""
        self._restored: weakref.WeakSet[Any] = weakref.WeakSet()
        """Scalers whose state was loaded, or that were in use before watch()."""
        self._maybe_restored: weakref.WeakSet[Any] = weakref.WeakSet()
        """Scalers whose initial scale is not the default, so it may come from a checkpoint."""
        self._resumed: dict[int, str] = {}
        """id of an optimizer whose state was loaded -> line of the load, '' for state present at watch()."""
        self._stateless: dict[int, str] = {}
        """The same for optimizers without state, such as SGD without momentum."""
        self._entered: set[tuple[str, str]] = set()
        self._gradient_dtypes: set[torch.dtype] = set()
        self._compiled = False
        self._walks = 0
        self._line = ""
        self._disabled: dict[str, Any] = {}
        self._last_scale: Transfer | None = None
        self._is_changed = False

    def start(self) -> None:
        """Records the scalers and optimizers given to watch() that already have a state.

        An optimizer that has steps, and was built while the calls were noted, has loaded them or made them here.
        """
        notes = self._session.preparation
        for scaler in self._session.watched.scalers:
            in_use = scaler.is_enabled() and (scaler._scale is not None or scaler._init_growth_tracker)
            if in_use or notes.of(SCALER, scaler):
                self._restored.add(scaler)
            elif _initial_scale(scaler) != DEFAULT_SCALE:
                self._maybe_restored.add(scaler)
        for optimizer in self._session.watched.optimizers:
            note = notes.of(OPTIMIZER, optimizer)
            if note is not None:
                self._record_resumed(optimizer, note.line)
            elif _optimizer_steps(optimizer) and optimizer not in notes.built:
                self._resumed[id(optimizer)] = ""

    def restored(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        self._restored.add(args[0])
        self._session.preparation.add(Restored(SCALER, weakref.ref(args[0]), call_site.line()))

    def resumed(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if args[0] in self._session.watched.optimizers:
            self._record_resumed(args[0], call_site.line())

    def _record_resumed(self, optimizer: torch.optim.Optimizer, line: str) -> None:
        (self._resumed if _optimizer_steps(optimizer) else self._stateless)[id(optimizer)] = line

    def after_scale(self, scaler: Any, outputs: Any) -> None:
        """Searches the graph of scale()'s outputs, at first and then at powers of two."""
        self._walks += 1
        if self._walks <= MAX_FIRST_WALKS or is_power_of_two(self._walks):
            self._line = self._line or call_site.line()
            if not scaler.is_enabled():
                self._disabled = {"caller": self._line, "device": str(getattr(scaler, "_device", ""))}
            unseen(lambda: self._walk(outputs), ())

    def _walk(self, outputs: Any) -> None:
        for root in roots(outputs):
            self._gradient_dtypes |= dtypes(root, MAX_NODES)
            self._compiled = self._compiled or _is_compiled(root)
        self._is_changed = True

    def before_use(self, scaler: Any, optimizer: Any) -> None:
        """Judges a scaler that unscales or steps this optimizer for the first time."""
        known = self._known.get(id(optimizer))
        if (known is not None and known() is scaler) or optimizer not in self._session.watched.optimizers:
            return
        self._known[id(optimizer)] = weakref.ref(scaler)
        if scaler in self._restored:
            return
        if known is not None:
            self._judge_rebuilt(scaler, optimizer)
        else:
            self._judge_resumed(scaler, optimizer)

    def finish(self, row: Row) -> None:
        if "updates" in row.raw:
            self._last_scale = row.raw["updates"][0].after
        for event, data in row.events:
            if event == "autocast.entered" and data["grad"]:
                self._entered.add((data["device"], data["dtype"]))
                self._is_changed = True
        if self._is_changed and (row.scaler_used or self._disabled):
            self._is_changed = False
            self._judge_use(row)

    def _judge_use(self, row: Row) -> None:
        """Reports an enabled scaler that only serves bfloat16, and a disabled one despite float16."""
        entered = {dtype for _, dtype in self._entered}
        if self._disabled and "float16" in entered and self._has_gradients_in(torch.float16):
            devices = sorted(device for device, dtype in self._entered if dtype == "float16")
            self._events.emit_in(row, "usage.scaler_disabled", {**self._disabled, "autocast": devices})
        only_bfloat16 = entered == {"bfloat16"} and torch.float16 not in self._gradient_dtypes
        if row.scaler_used and only_bfloat16 and self._has_gradients_in(torch.bfloat16):
            self._events.emit_in(row, "usage.scaler_with_bf16", {"caller": self._line, "scale": self._scale()})

    def _scale(self) -> float | None:
        """The scale after the last update() in the finished rows."""
        return None if self._last_scale is None else self._last_scale.number()

    def _judge_resumed(self, scaler: Any, optimizer: Any) -> None:
        """Reports an optimizer that resumes from loaded state with a new scaler.

        An optimizer without state resumes if the program also read a file with a scaler's state. A scaler that starts
        at a scale of that file continues, and so may one with a first scale of its own if neither the load nor a file
        with a scaler's state was observed.
        """
        files, scalers = self._session.preparation.files(), self._session.preparation.restored(SCALER)
        line = self._resumed.get(id(optimizer))
        has_saved_scaler = any(file.contents.scaler for file in files)
        if line is None and has_saved_scaler:
            line = self._stateless.get(id(optimizer))
        if line is None:
            return
        scale = _initial_scale(scaler)
        is_read = any(scale in file.contents.scales for file in files)
        may_be_restored = not line and not has_saved_scaler and scaler in self._maybe_restored
        if scale != DEFAULT_SCALE and (is_read or may_be_restored):
            return
        data: dict[str, Any] = {
            "optimizer": name_of(optimizer),
            "optimizer_steps": _optimizer_steps(optimizer),
            "scale": scale,
        }
        other = next((note.line for note in scalers if note.target() is not scaler), "")
        data |= {"loaded_by_another": other} if other else {}
        self._events.emit_once("usage.scaler_not_restored", line=line, **data)

    def _judge_rebuilt(self, scaler: Any, optimizer: Any) -> None:
        """Reports another scaler for the same optimizer.

        A new scaler that starts at the last scale of the previous one loses no scale, so it is no mistake. The next one
        is judged again.
        """
        self._events.emit_once(
            "usage.scaler_rebuilt",
            confirm=lambda data: data["scale"] != data["scale_before"],
            optimizer=name_of(optimizer),
            scale=_initial_scale(scaler),
            scale_before=self._scale,
        )

    def _has_gradients_in(self, dtype: torch.dtype) -> bool:
        """Whether gradients of scale()'s outputs flow in a dtype.

        A compiled graph hides its dtypes, so the answer is then True.
        """
        return dtype in self._gradient_dtypes or self._compiled


def _initial_scale(scaler: Any) -> float:
    return float(getattr(scaler, "_init_scale", DEFAULT_SCALE))


def _optimizer_steps(optimizer: torch.optim.Optimizer) -> int:
    """The step count in an optimizer's state.

    It is 1 for state without a readable count and 0 without state.
    """
    for state in optimizer.state.values():
        count = state.get("step") if isinstance(state, dict) else None
        if isinstance(count, torch.Tensor):
            return unseen(lambda: int(count), (count,)) if count.is_cpu and has_numbers(count) else 1  # noqa: B023
        return int(count) if isinstance(count, int | float) else 1
    return 0


def _is_compiled(root: torch.Tensor) -> bool:
    node = root.grad_fn
    return node is not None and any("CompiledFunction" in ancestor.name() for ancestor in nodes(node, MAX_NODES))
