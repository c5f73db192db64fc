"""Records each GradScaler's scale, growth tracker and, per optimizer, overflows and skips."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ammeter.recording.scaler_updates import Update, is_positive, skipped_in
from ammeter.tensors import async_copy
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.weak_id_set import WeakIdSet

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Scaler:
    name = "scaler"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._consecutive = 0
        self._seen: WeakIdSet[Any] = WeakIdSet(())
        self._numbers: dict[int, int] = {}
        self._scales: dict[int, async_copy.Transfer] = {}
        """Number of a scaler -> its scale after the last update()."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        for scaler in self._session.watched.scalers:
            self._number(scaler)
        kinds = self._session.watched.scaler_kinds
        return [
            *self._session.fast_path.pauses(
                patch.methods(kinds, "update", before=guard(self._before_update), after=guard(self._after_update))
            ),
            *patch.methods(kinds, "load_state_dict", after=guard(self._after_load)),
        ]

    def count_fast_steps(self, first: int, count: int) -> None:
        self._consecutive = 0

    def finish(self, row: Row) -> None:
        updates: list[Update] = row.raw.get("updates", _NO_UPDATES)
        found_infs = sum([is_positive(found_inf) for update in updates for found_inf in update.found_infs.values()])
        skipped = len(skipped_in(row)) if found_infs or row.skipped else 0
        in_use = [update for update in updates if update.found_infs] or updates  # the others are update(new_scale)
        scales = [(update.scale.number(), update.growth_tracker.number()) for update in in_use]
        scalars = row.scalars
        scalars["applied"], scalars["skipped"] = len(row.stepped | row.skipped) - skipped, skipped
        self._consecutive = self._consecutive + 1 if skipped else 0
        if skipped:
            failed = [update.scale.number() for update in in_use if any(map(is_positive, update.found_infs.values()))]
            scale = min(failed or [at for at, _ in scales], default=scalars.get("scale"))
            data = {"scale": scale, "consecutive": self._consecutive}
            row.events.append(("step.skipped", data))
            self._session.governor.norm_schedule.skipped(row.step, self._session.row.step)
        if updates:
            scalars["scale"], scalars["growth_tracker"] = min(scales)
            scalars["found_inf"] = found_infs
            for update in updates:
                self._compare(row, update)

    def _compare(self, row: Row, update: Update) -> None:
        before, after = update.scale.number(), (update.after or update.scale).number()
        if after != before:
            name = "scaler.backoff" if after < before else "scaler.growth"
            row.events.append((name, {"from": before, "to": after, **self._which(update.number)}))
            if not _is_on_host(update):
                self._session.governor.norm_schedule.scale_changed(self._session.row.step)

    def _before_update(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler not in self._seen:
            if scaler not in self._session.watched.scalers:
                return
            self._number(scaler)
        if not scaler.is_enabled() or scaler._scale is None:
            return
        row = self._session.row
        update = Update(self._numbers[id(scaler)], async_copy.of(scaler._scale), async_copy.of(scaler._growth_tracker))
        row.wait_for(update.scale)
        row.wait_for(update.growth_tracker)
        if "late_update" in row.raw:  # update() was not observed; the scaler now has the state after it
            update.scale = self._scales.get(update.number, update.scale)
            found = [(key, 1.0) for key in row.skipped] + [(key, 0.0) for key in row.stepped]
            update.found_infs = {optimizer: [async_copy.number(number)] for optimizer, number in found}
        for optimizer, state in scaler._per_optimizer_states.items():
            update.found_infs[optimizer] = found_infs = [
                async_copy.of(tensor) for tensor in state["found_inf_per_device"].values()
            ]
            for transfer in found_infs:
                row.wait_for(transfer)
        updates = row.raw.get("updates")
        if updates is None:
            row.raw["updates"] = [update]
        else:
            updates.append(update)

    def _after_update(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        """Reads the scale after update(). Rows are finished later: a change that is known now is not left to them."""
        row = self._session.row
        updates = row.raw.get("updates")
        if updates and updates[-1].number == self._numbers.get(id(args[0])):
            update = updates[-1]
            update.after = self._scales[update.number] = async_copy.of(args[0]._scale)
            row.wait_for(update.after)
            if _is_on_host(update) and update.after.number() != update.scale.number():
                self._session.governor.norm_schedule.scale_changed(row.step + 1)

    def _after_load(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        scaler = args[0]
        state = args[1] if len(args) > 1 else kwargs.get("state_dict", {})
        if self._session.watched.owns(scaler) and scaler.is_enabled():
            number = self._number(scaler)
            self._session.emit("scaler.restored", {"scale": float(state["scale"]), **self._which(number)})

    def _number(self, scaler: Any) -> int:
        """The scaler's number in the order of first use; emits scaler.seen for a new scaler."""
        if scaler not in self._seen:
            self._numbers[id(scaler)] = len(self._numbers)
            self._seen.add(scaler)
            scale = getattr(scaler, "_init_scale", None)
            data = {"enabled": scaler.is_enabled(), "device": getattr(scaler, "_device", ""), "scale": scale}
            self._session.emit("scaler.seen", {**data, **self._which(self._numbers[id(scaler)])})
        return self._numbers[id(scaler)]

    def _which(self, number: int) -> dict[str, int]:
        return {"scaler": number} if len(self._numbers) > 1 else {}


def _is_on_host(update: Update) -> bool:
    """Whether the scale before and after the update has been known since the update."""
    return update.scale.on_host and update.after is not None and update.after.on_host


_NO_UPDATES: list[Update] = []
