"""The GradScaler: its scale, its growth tracker, and for each optimizer whether it found Inf and skipped."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter import tap
from ammeter.stats import transfer

if TYPE_CHECKING:
    from ammeter.row import Row
    from ammeter.session import Session


class Scaler:
    name = "scaler"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._consecutive = 0
        self._introduced: weakref.WeakSet[torch.amp.GradScaler] = weakref.WeakSet()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        for scaler in self._session.watched.scalers:
            self._introduce(scaler)
        kinds = self._session.watched.scaler_kinds
        return tap.methods(kinds, "update", before=guard(self._before_update), after=guard(self._after_update))

    def finish(self, row: Row) -> None:
        late = {key for key, found in row.raw.get("found_inf", {}).items() if _late_skip(row, key, found)}
        skipped = row.skipped | late
        self._count(row, len(row.stepped - skipped), len(skipped))
        scales, after = row.arrived("scale"), row.arrived("scale_after")
        if not scales:
            return
        row.scalars["scale"] = min(float(each[0]) for each in scales)
        row.scalars["growth_tracker"] = float(row.arrived("growth_tracker")[0][0])
        row.scalars["found_inf"] = sum(_positive(found) for found in row.raw["found_inf"].values())
        for one, other in zip(scales, after, strict=False):
            self._compare(row, float(one[0]), float(other[0]))

    def _count(self, row: Row, applied: int, skipped: int) -> None:
        row.scalars["applied"], row.scalars["skipped"] = applied, skipped
        self._consecutive = self._consecutive + 1 if skipped else 0
        if skipped:
            scale = [float(each[0]) for each in row.arrived("scale")]
            data = {"scale": min(scale) if scale else None, "consecutive": self._consecutive}
            row.events.append(("step.skipped", data))

    def _compare(self, row: Row, before: float, after: float) -> None:
        if after != before:
            name = "scaler.backoff" if after < before else "scaler.growth"
            row.events.append((name, {"from": before, "to": after}))

    def _before_update(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler not in self._session.watched.scalers:
            return
        self._introduce(scaler)
        if not scaler.is_enabled() or scaler._scale is None:
            return
        row = self._session.row
        row.later("scale", transfer.of(scaler._scale))
        row.later("growth_tracker", transfer.of(scaler._growth_tracker))
        found_inf = row.raw.setdefault("found_inf", {})
        for optimizer, state in scaler._per_optimizer_states.items():
            found_inf[optimizer] = [transfer.of(found) for found in state["found_inf_per_device"].values()]
            for arriving in found_inf[optimizer]:
                row.later("found_inf", arriving)

    def _after_update(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        scaler = args[0]
        if scaler.is_enabled() and scaler in self._session.watched.scalers:
            self._session.row.later("scale_after", transfer.of(scaler._scale))

    def _introduce(self, scaler: torch.amp.GradScaler) -> None:
        if scaler in self._introduced:
            return
        self._introduced.add(scaler)
        scale = getattr(scaler, "_init_scale", None)
        data = {"enabled": scaler.is_enabled(), "device": getattr(scaler, "_device", ""), "scale": scale}
        self._session.tell("scaler.seen", data)


def _late_skip(row: Row, optimizer: int, found: list[transfer.Transfer]) -> bool:
    """A fused optimizer steps in any case and applies nothing when its kernel reads found_inf."""
    return optimizer in row.fused and _positive(found)


def _positive(found: list[transfer.Transfer]) -> bool:
    return any(bool(each.array()[0] > 0) for each in found)
