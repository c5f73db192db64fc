"""The GradScaler: its scale, its growth tracker, and for each optimizer whether it found Inf and skipped."""

from __future__ import annotations

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

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        for scaler in self._session.watched.scalers:
            self._introduce(scaler)
        kinds: set[type] = {torch.amp.GradScaler, *(type(scaler) for scaler in self._session.watched.scalers)}
        before, after = guard(self._before_update), guard(self._after_update)
        return [tap.method(kind, "update", before=before, after=after) for kind in kinds]

    def finish(self, row: Row) -> None:
        late = {key for key, found in row.raw.get("found_inf", {}).items() if _late_skip(row, key, found)}
        skipped = row.skipped | late
        self._count(row, len(row.stepped - skipped), len(skipped))
        scales, after = row.arrived("scale"), row.arrived("scale_after")
        if not scales:
            return
        row.scalars["scale"] = before = min(float(each[0]) for each in scales)
        row.scalars["growth_tracker"] = float(row.arrived("growth_tracker")[0][0])
        row.scalars["found_inf"] = sum(_positive(found) for found in row.raw["found_inf"].values())
        if after:
            self._compare(row, before, min(float(each[0]) for each in after))

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
        if not scaler.is_enabled() or scaler not in self._session.watched.scalers or scaler._scale is None:
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
        scale = getattr(scaler, "_init_scale", None)
        data = {"enabled": scaler.is_enabled(), "device": getattr(scaler, "_device", ""), "scale": scale}
        self._session.tell("scaler.seen", data)


def _late_skip(row: Row, optimizer: int, found: list[transfer.Transfer]) -> bool:
    """A fused optimizer steps in any case and applies nothing when its kernel reads found_inf."""
    return optimizer in row.fused and _positive(found)


def _positive(found: list[transfer.Transfer]) -> bool:
    return any(bool(each.array()[0] > 0) for each in found)
