"""Which scaler works on which optimizer: built once, restored on resume, of use, and able to work at all."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.marks import dtypes, nodes, roots
from ammeter.probes.call_order.telling import Telling, is_power_of_two, name_of
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

DEFAULT = 65536.0
"""GradScaler's own first scale."""

WALKED_AT_FIRST = 4
FAR = 1024
"""Scaled losses, at first and later at powers of two, and nodes behind each, that are looked at for their dtypes."""


class Scalers:
    def __init__(self, session: ProbeContext, telling: Telling) -> None:
        self._session = session
        self._telling = telling
        self._known: dict[int, tuple[weakref.ref[Any], float]] = {}
        """id of an optimizer -> (its scaler, that one's first scale)."""
        self._restored: weakref.WeakSet[Any] = weakref.WeakSet()
        self._perhaps: weakref.WeakSet[Any] = weakref.WeakSet()
        """Whose state was loaded or that counted before; and those with a first scale that may have been loaded."""
        self._resumed: dict[int, str] = {}
        """id of an optimizer whose state was loaded -> by which line, '' where it was there at watch()."""
        self._entered: set[tuple[str, str]] = set()
        self._flow: set[torch.dtype] = set()
        self._compiled = False
        self._walks = 0
        self._line = ""
        self._off: dict[str, Any] = {}
        self._last: Transfer | None = None
        self._unsettled = False

    def begin(self) -> None:
        """What the scalers and optimizers that were given to watch() have behind them."""
        for scaler in self._session.watched.scalers:
            if scaler.is_enabled() and (scaler._scale is not None or scaler._init_growth_tracker):
                self._restored.add(scaler)
            elif _first(scaler) != DEFAULT:
                self._perhaps.add(scaler)
        for optimizer in self._session.watched.optimizers:
            if _steps_behind(optimizer):
                self._resumed[id(optimizer)] = ""

    def restored(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        self._restored.add(args[0])

    def resumed(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if args[0] in self._session.watched.optimizers and _steps_behind(args[0]):
            self._resumed[id(args[0])] = call_site.line()

    def used(self, scaler: Any, outputs: Any) -> None:
        """scale() has returned."""
        self._walks += 1
        if self._walks <= WALKED_AT_FIRST or is_power_of_two(self._walks):
            self._line = self._line or call_site.line()
            if not scaler.is_enabled():
                self._off = {"caller": self._line, "device": str(getattr(scaler, "_device", ""))}
            unseen(lambda: self._walk(outputs), ())

    def _walk(self, outputs: Any) -> None:
        for root in roots(outputs):
            self._flow |= dtypes(root, FAR)
            self._compiled = self._compiled or _is_compiled(root)
        self._unsettled = True

    def asked(self, scaler: Any, optimizer: Any) -> None:
        """An enabled scaler is about to unscale or step this optimizer."""
        known = self._known.get(id(optimizer))
        if (known is not None and known[0]() is scaler) or optimizer not in self._session.watched.optimizers:
            return
        self._known[id(optimizer)] = weakref.ref(scaler), _first(scaler)
        if scaler in self._restored:
            return
        if known is not None:
            self._judge_rebuilt(scaler, optimizer, known[1])
        else:
            self._judge_resumed(scaler, optimizer)

    def finish(self, row: Row) -> None:
        if "updates" in row.raw:
            self._last = row.raw["updates"][0].after
        for event, data in row.events:
            if event == "autocast.entered" and data["grad"]:
                self._entered.add((data["device"], data["dtype"]))
                self._unsettled = True
        if self._unsettled and (row.scaler_used or self._off):
            self._unsettled = False
            self._judge_use(row)

    def _judge_use(self, row: Row) -> None:
        """Whether a scaler that is on has anything to scale, and one that is off should have had."""
        entered = {dtype for _, dtype in self._entered}
        if self._off and "float16" in entered and self._flows(torch.float16):
            devices = sorted(device for device, dtype in self._entered if dtype == "float16")
            self._telling.late(row, "usage.scaler_disabled", {**self._off, "autocast": devices})
        only = entered == {"bfloat16"} and torch.float16 not in self._flow
        if row.scaler_used and only and self._flows(torch.bfloat16):
            self._telling.late(row, "usage.scaler_with_bf16", {"caller": self._line, "scale": self._scale()})

    def _scale(self) -> float | None:
        """What the last update() has left, of the rows that are finished."""
        return None if self._last is None else self._last.number()

    def _judge_resumed(self, scaler: Any, optimizer: Any) -> None:
        """The optimizer goes on where it was, and its scaler begins."""
        line = self._resumed.get(id(optimizer))
        if line is None or (not line and scaler in self._perhaps):
            return
        data: dict[str, Any] = {
            "optimizer": name_of(optimizer),
            "optimizer_steps": _steps_behind(optimizer),
            "scale": _first(scaler),
        }
        self._telling.once("usage.scaler_not_restored", line=line, **data)

    def _judge_rebuilt(self, scaler: Any, optimizer: Any, first: float) -> None:
        """Another scaler takes over. One that begins where the last one had come to is the same one carried on."""
        self._telling.once(
            "usage.scaler_rebuilt",
            holds=lambda data: data["scale"] != data["scale_before"] or data["scale"] == first,
            optimizer=name_of(optimizer),
            scale=_first(scaler),
            scale_before=self._scale,
        )

    def _flows(self, dtype: torch.dtype) -> bool:
        """Whether gradients that were, or should have been, scaled flow in it. A compiled graph does not say."""
        return dtype in self._flow or self._compiled


def _first(scaler: Any) -> float:
    return float(getattr(scaler, "_init_scale", DEFAULT))


def _steps_behind(optimizer: torch.optim.Optimizer) -> int:
    """Steps that the state of an optimizer says it has made; 1 where there is state that does not count."""
    for state in optimizer.state.values():
        count = state.get("step") if isinstance(state, dict) else None
        if isinstance(count, torch.Tensor):
            return unseen(lambda: int(count), (count,)) if count.is_cpu and has_numbers(count) else 1  # noqa: B023
        return int(count) if isinstance(count, int | float) else 1
    return 0


def _is_compiled(root: torch.Tensor) -> bool:
    node = root.grad_fn
    return node is not None and any("CompiledFunction" in each.name() for each in nodes(node, FAR))
