"""Reads the gradients of each optimizer once per step, before a scaler unscales them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import ABSMAX, COLUMNS, GRID, INFS, NANS, NORM, SMALL, SUBNORMALS, ZEROS, async_copy, cpu
from ammeter.tensors.cuda import Device
from ammeter.tensors.dispatch import Host
from ammeter.tensors.exponents import LOWEST, spectrum
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.clip_calls import about_to_change, clip_function, sorting_function
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.targets import gradients, optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

NAMED = 20
"""Non-finite tensors that an event names, so that it stays small; their number is always reported."""

LARGEST = float(np.finfo(np.float32).max)

TOLD_AGAIN = 100
"""Steps after which an unchanged list of non-finite tensors is reported again."""

SPECTRUM_EVERY = 8
"""One spectrum is read per this many full readings."""

COUNTED_STEPS = 10
"""Consecutive non-finite steps whose elements are counted exactly; later counts need the governor's permission."""

HOST = "cpu"

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A reading of scaled gradients on one device; transfers may be pending.

    Attributes:
        numbers: the norms, or after a full reading (`whole`) the statistics columns, one gradient after the other.
        counted: (tensor indices, statistics columns) of the non-finite gradients, if only norms were read.
    """

    indices: Indices
    numbers: async_copy.Transfer
    scale: async_copy.Transfer
    whole: bool
    watch: async_copy.Stopwatch | None = None
    spectrum: async_copy.Transfer | None = None
    counted: tuple[Indices, npt.NDArray[np.float64]] | None = None


class Gradients:
    name = "gradients"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._bad_rows = 0
        self._whole_readings = 0
        self._told: tuple[list[int], int] = ([], -TOLD_AGAIN)
        self._found: set[int] = set()
        """Optimizers that had gradients when watching began, until they receive new ones.

        The probe does not know whether these gradients were clipped or are still scaled.
        """
        self._hosts: weakref.WeakKeyDictionary[torch.optim.Optimizer, Host] = weakref.WeakKeyDictionary()
        self._devices: weakref.WeakKeyDictionary[torch.optim.Optimizer, dict[torch.device, Device]]
        self._devices = weakref.WeakKeyDictionary()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = self._session.watched.scaler_kinds
        guard(self._prepare)()
        self._found = {id(optimizer) for optimizer in self._session.watched.optimizers if _has_gradients(optimizer)}
        return self._session.while_awake(
            [
                patch.backward(before=guard(self._backward)),
                *patch.methods(self._session.watched.optimizer_kinds, "zero_grad", before=guard(self._resetting)),
                *patch.methods(kinds, "unscale_", before=guard(self._unscaling)),
                patch.function(*clip_function(), before=guard(self._clipping)),
                patch.function(*sorting_function(), before=guard(self._changing)),
                patch.stepping(guard(self._stepping)),
                patch.stepped(guard(self._stepped)),
            ]
        )

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Reads the gradients of a skipped step, even without the governor's permission.

        The non-finite numbers are still in the gradients.
        """
        self.read(optimizer, always=True)

    def read(self, optimizer: torch.optim.Optimizer, *, always: bool = False) -> None:
        """Reads the statistics of this optimizer's gradients, once per step.

        A step that is known to be skipped is always read, before a clip turns all its gradients into NaN. Of several
        optimizers in one step all are read or none, because the norm covers all gradients.

        Args:
            always: read even if the governor does not allow a reading.
        """
        row, key, governor = self._session.row, id(optimizer), self._session.governor
        asked: dict[int, bool] = row.raw.setdefault("gradients_read", {})
        if asked.get(key):
            return
        turn = row.raw.get("gradients_turn")
        if turn is None:
            whole = governor.full.allows()
            turn = row.raw["gradients_turn"] = (whole, whole or governor.norms.allows())
        whole, allowed = turn if key not in asked else (False, False)
        asked[key] = always or allowed or (bool(row.scaler_used) and self._session.watched.overflowed(optimizer))
        if not asked[key]:
            return
        began = perf_counter()
        indices, found = self._collect(optimizer)
        if found:
            scale = self._scale(optimizer)
            unseen(lambda: self._take(row, optimizer, indices, found, scale, whole), found)
        (governor.full if whole else governor.norms).spend(perf_counter() - began)

    def finish(self, row: Row) -> None:
        parts: list[Part] | None = row.raw.get("gradients")
        if not parts:
            return
        squares, bad, known = 0.0, [], []
        for part in parts:
            if part.watch:
                self._session.governor.norms.spend_on_device(part.watch.seconds())
            norms = _fill(row, part)
            squares += float(norms @ norms)
            known += part.indices.tolist()
            if not math.isfinite(float(norms.sum())):
                bad += part.indices[~np.isfinite(part.numbers.array().reshape(len(norms), -1)[:, NORM])].tolist()
        if _is_whole(row) or not squares < math.inf:
            row.scalars["grad_norm"] = min(math.sqrt(squares), LARGEST) if squares < math.inf else squares
        _tell_spectrum(row, [part for part in parts if part.spectrum])
        self._bad_rows = self._bad_rows + 1 if bad else 0
        self._tell(row, sorted(bad), sorted(known))

    def _backward(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        if self._found:
            self._found.clear()

    def _resetting(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Reads gradients that zero_grad() would discard inside step(closure).

        A second evaluation of the closure uses other weights and resets the gradients of the first one.
        """
        self._found.discard(id(args[0]))
        closure = self._session.closure
        if closure.optimizer == id(args[0]) and closure.evaluated and not closure.again:
            self._read_if_watched(args[0])

    def _unscaling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._read_if_watched(optimizer_in(args, kwargs))

    def _clipping(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reads the gradients before a clip by norm.

        The usage probe runs earlier and has stored the clipped optimizers in the row.
        """
        row = self._session.row
        if row.clipped:
            for optimizer in row.clipped:
                self._read_before_change(optimizer, always=not row.clip_is_finite)
            row.clipped = ()

    def _changing(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Reads the gradients before a clip by value, or before another clipping function of torch."""
        session = self._session
        asked = session.row.raw.get("gradients_read", ())
        if not all(id(optimizer) in asked for optimizer in session.watched.optimizers):
            for optimizer in session.watched.optimizers_of_gradients(about_to_change(args)):
                self._read_before_change(optimizer)

    def _read_before_change(self, optimizer: torch.optim.Optimizer, *, always: bool = False) -> None:
        closure, key = self._session.closure, id(optimizer)
        if closure.optimizer == key and closure.again:
            return
        watched = self._session.watched
        known = key not in self._found and (watched.scaled_by_one(optimizer) or not self._session.row.raw.get("scaled"))
        if not known and not watched.unscaled(optimizer):
            self._leave(optimizer)
        else:
            self.read(optimizer, always=always)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._session.watched.optimizers or closure_in(args, kwargs) is not None:
            return
        if id(optimizer) in self._found:
            self._found.discard(id(optimizer))
            self._leave(optimizer)
        self.read(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Reads the gradients that a closure computed during step(); they still exist after it."""
        if optimizer in self._session.watched.optimizers and closure_in(args, kwargs) is not None:
            if not self._session.closure.untouched():
                self._leave(optimizer)
            self.read(optimizer)

    def _leave(self, optimizer: torch.optim.Optimizer) -> None:
        """Prevents later readings of this step, except forced ones and overflows.

        The gradients are no longer as backward() left them, or their state is unknown.
        """
        self._session.row.raw.setdefault("gradients_read", {}).setdefault(id(optimizer), False)

    def _read_if_watched(self, optimizer: Any) -> None:
        if optimizer in self._session.watched.optimizers:
            self.read(optimizer)

    def _collect(self, optimizer: torch.optim.Optimizer) -> tuple[Indices, list[torch.Tensor]]:
        """Indices and gradients of the parameters that have one.

        Gradients with the layout of the last reading are not examined again.
        """
        parameters, indices = self._session.watched.parameters(optimizer)
        found = [parameter.grad for parameter in parameters]
        there = [gradient for gradient in found if gradient is not None]
        if not self._host(optimizer).fits(there):
            found = gradients(parameters)
            there = [gradient for gradient in found if gradient is not None]
        if len(there) < len(found):
            indices = [index for index, gradient in zip(indices, found, strict=True) if gradient is not None]
        return np.array(indices, np.int64), there

    def _scale(self, optimizer: torch.optim.Optimizer) -> async_copy.Transfer:
        """The scale that the gradients are multiplied by now, 1 without a scaler."""
        row = self._session.row
        scaled = row.raw.get("scaled") or id(optimizer) in row.scaler_used
        scaler = self._session.watched.scaling(optimizer) if scaled else None
        return async_copy.number(1.0) if scaler is None or scaler._scale is None else async_copy.of(scaler._scale)

    def _take(
        self,
        row: Row,
        optimizer: torch.optim.Optimizer,
        indices: Indices,
        found: list[torch.Tensor],
        scale: async_copy.Transfer,
        whole: bool,
    ) -> None:
        parts = row.raw.setdefault("gradients", [])
        on = [gradient.device for gradient in found]
        for device in set(on):
            at = [place for place, location in enumerate(on) if location == device]
            here, chosen = (indices, found) if len(at) == len(on) else (indices[at], [found[place] for place in at])
            if device.type == HOST:
                part = self._on_host(row, self._host(optimizer), here, chosen, scale, whole)
            else:
                part = self._on_device(self._device(optimizer, device), here, chosen, scale, whole)
            parts.append(part)
            row.later("gradients", part.numbers)
            if part.spectrum:
                row.later("gradients", part.spectrum)
            row.later("gradients", scale)

    def _on_host(
        self, row: Row, host: Host, indices: Indices, found: list[torch.Tensor], scale: async_copy.Transfer, whole: bool
    ) -> Part:
        """Reads norms or all statistics on the CPU, and counts non-finite elements.

        After COUNTED_STEPS consecutive bad steps a reading of norms counts only if the governor allows a full reading.
        """
        numbers = host.read(found) if whole else host.norms(found)
        bad = np.flatnonzero(~np.isfinite(numbers[:, NORM] if whole else numbers))
        counted = None
        if bad.size:
            row.urgent = True
            if not whole and (self._bad_rows < COUNTED_STEPS or self._session.governor.full.allows()):
                counted = indices[bad], cpu.read([found[at] for at in bad])
        due = async_copy.Arrived(spectrum(found).astype(np.float64)) if self._spectrum_is_due(whole) else None
        return Part(indices, async_copy.Arrived(numbers.reshape(-1)), scale, whole, spectrum=due, counted=counted)

    def _on_device(
        self, device: Device, indices: Indices, found: list[torch.Tensor], scale: async_copy.Transfer, whole: bool
    ) -> Part:
        """Reads on a device. Ammeter's kernels read all statistics in one pass.

        Without these kernels, statistics other than norms are read as rarely as on the host.
        """
        watch = async_copy.Stopwatch(found[0].device)
        whole = whole or not device.slow
        if self._spectrum_is_due(whole):
            rows, counts = device.read_with_spectrum(found)
            return Part(indices, async_copy.of(rows), scale, whole, watch.end(), async_copy.of(counts.double()))
        numbers = async_copy.of(device.read(found) if whole else cpu.norms(found))
        return Part(indices, numbers, scale, whole, watch.end())

    def _spectrum_is_due(self, whole: bool) -> bool:
        self._whole_readings += whole
        return whole and self._whole_readings % SPECTRUM_EVERY == 1

    def _prepare(self) -> None:
        """Compiles the kernels at watch(), when a delay of about a second is acceptable.

        The weights serve as input, because their gradients will have the same shapes, dtypes and devices.
        """
        for optimizer in self._session.watched.optimizers:
            parameters = self._session.watched.parameters(optimizer)[0]
            for device in {parameter.device for parameter in parameters if parameter.device.type == "cuda"}:
                here = [
                    parameter.detach()
                    for parameter in parameters
                    if parameter.device == device and parameter.requires_grad
                ]
                if readable := [weight for weight in here if has_numbers(weight)]:
                    self._device(optimizer, device).read(readable)

    def _device(self, optimizer: torch.optim.Optimizer, device: torch.device) -> Device:
        return self._devices.setdefault(optimizer, {}).setdefault(device, Device())

    def _host(self, optimizer: torch.optim.Optimizer) -> Host:
        return self._hosts.setdefault(optimizer, Host())

    def _tell(self, row: Row, bad: list[int], known: list[int]) -> None:
        if not bad:
            return
        if self._told[0] == bad and row.step - self._told[1] < TOLD_AGAIN and self._bad_rows >= COUNTED_STEPS:
            return
        self._told = (bad, row.step)
        names = self._session.watched.tensors
        tensors = [{"tensor": names[index].name, **_counts(row, index)} for index in bad[:NAMED]]
        row.events.append(
            (
                "gradient.nonfinite",
                {
                    "tensors": tensors,
                    "count": len(bad),
                    "last": names[bad[-1]].name,
                    "finite_after": sum(index > bad[-1] for index in known),
                    "finite": len(known) - len(bad),
                    "scaled": bool(row.raw.get("scaled")),
                },
            )
        )


def _is_whole(row: Row) -> bool:
    """Whether the gradients of all optimizers that stepped or were skipped have been read."""
    asked: dict[int, bool] = row.raw.get("gradients_read", {})
    return all(asked.get(optimizer, True) for optimizer in row.stepped | row.skipped)


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _counts(row: Row, index: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for stat, name in (("grad.nans", "nans"), ("grad.infs", "infs")):
        for indices, numbers in row.stats.get(stat, []):
            for at in np.flatnonzero(indices == index):
                found[name] = int(numbers[at])
    return found


def _tell_spectrum(row: Row, parts: list[Part]) -> None:
    """Reports the spectrum, still multiplied by the scale, as float16 had to represent the elements."""
    if parts:
        counts = sum(part.spectrum.array() for part in parts if part.spectrum)
        data = {"lowest": LOWEST, "counts": np.asarray(counts).astype(int).tolist(), "scale": parts[0].scale.number()}
        row.events.append(("gradient.spectrum", data))


def _fill(row: Row, part: Part) -> npt.NDArray[np.float64]:
    """Stores a part in the row, divided by the scale.

    Returns:
        The norms as stored, rounded to float32.
    """
    scale = part.scale.number()
    numbers = part.numbers.array().astype(np.float64)
    if part.whole:
        columns = numbers.reshape(-1, COLUMNS)
        _fill_all(row, part.indices, columns, scale)
        numbers = columns[:, NORM]
        _count(row, part.indices, columns)
    elif part.counted is not None:
        _count(row, *part.counted)
    row.fill("grad.norm", part.indices, numbers / scale if scale else numbers * np.inf)
    return row.stats["grad.norm"][-1][1].astype(np.float64)


def _fill_all(row: Row, indices: Indices, columns: npt.NDArray[np.float64], scale: float) -> None:
    absmax = columns[:, ABSMAX] / np.float64(scale)
    row.fill("grad.absmax", indices, absmax)
    row.fill("grad.zeros", indices, columns[:, ZEROS])
    row.fill("grad.subnormals", indices, columns[:, SUBNORMALS])
    small = columns[:, SMALL] > 0
    row.fill("grad.fp16_grid", indices[small], columns[small, GRID] / columns[small, SMALL])
    row.scalars["grad_absmax"] = max(row.scalars.get("grad_absmax", 0.0), min(float(absmax.max()), LARGEST))


def _count(row: Row, indices: Indices, columns: npt.NDArray[np.float64]) -> None:
    """Counts NaN and Inf elements: their sum, and per gradient where there are any."""
    counts = columns[:, NANS] + columns[:, INFS]
    row.scalars["grad_nonfinite"] = row.scalars.get("grad_nonfinite", 0.0) + float(counts.sum())
    bad = counts > 0
    if bad.any():
        row.fill("grad.nans", indices[bad], columns[bad, NANS])
        row.fill("grad.infs", indices[bad], columns[bad, INFS])
