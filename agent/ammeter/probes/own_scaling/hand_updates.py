"""Finds steps in which the program updates its weights itself with gradients that are still multiplied by the scale.

No call shows such an update. A few weights show by which factor it multiplies the gradients that backward() left:
usually a learning rate over the loss scale. Where it is this learning rate itself, nothing has divided the gradients.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ammeter.probes.own_scaling.judgement import MIN_JUDGED_SCALE
from ammeter.probes.own_scaling.samples import (
    MIN_ELEMENTS,
    DeviceSample,
    HostSample,
    Sample,
    Samples,
    magnitude,
    typical,
)
from ammeter.recording.loss_shares import is_power_of_two, own_scale
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site, optimizer_steps, patch
from ammeter.torch_hooks.hook_points import Group
from ammeter.torch_hooks.weak_id_set import WeakIdSet

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

KEY, EVENT = "hand_updates", "usage.gradients_not_unscaled"

MIN_USUAL_STEPS = 3
MAX_USUAL_STEPS = 8
"""Last steps that show the usual factor: enough to tell a constant one, few enough for a slow schedule."""

TOLERANCE = 0.01
"""Relative tolerance of the factor. A restart of the learning rate from 1e-6 to 1e-3 is 2.3 % off a scale of 1024."""

MIN_MOVE = 2.0**-20
"""Smallest relative change of a weight: 8 units in the last place of float32, so that it is known to 6 %."""

SPREAD = 0.1
MIN_ALIKE_SHARE = 0.75
"""Share of the elements whose factor is this near to the typical one."""


class Open(NamedTuple):
    """What was sampled after the last backward().

    Attributes:
        reduced: gradients that the program has averaged with those of other ranks since then, with their first position
            in `gradients`.
        scale: that of a GradScaler, None without one.
    """

    gradients: Sample
    reduced: list[tuple[int, Sample]]
    weights: Sample
    scale: Transfer | None
    place: call_site.Place


class Update(NamedTuple):
    """An update of one optimizer's weights that no call has shown.

    Attributes:
        was: what was sampled before it.
        after: the weights after it.
        rate: the optimizer's learning rate; NaN if it has several, or if gradients have hooks, which may divide them.
    """

    optimizer: weakref.ref[torch.optim.Optimizer]
    was: Open
    after: Sample
    rate: float

    def samples(self) -> Iterator[Sample]:
        yield from (self.was.gradients, self.was.weights, self.after)
        yield from (sample for _, sample in self.was.reduced)

    def gradients(self) -> list[float]:
        """Returns the gradients that the program had before it divided them."""
        found = list(self.was.gradients.values)
        for first, sample in self.was.reduced:
            found[first : first + len(sample.values)] = sample.values
        return found

    def factors(self) -> list[float]:
        """Returns by which factor the update has multiplied each gradient, NaN if it has no meaning."""
        values = zip(self.gradients(), self.was.weights.values, self.after.values, strict=False)
        return [_factor(gradient, old, new) for gradient, old, new in values]

    def is_at_rate(self) -> bool:
        """Whether the update has multiplied the gradients that backward() left by the learning rate, and divided none.

        A learning rate of 1 over a scale of 1024 is 2.3 % off a learning rate of 0.001.
        """
        factors = self.factors()
        return _is_factor(factors, [self.rate] * len(factors), 1.0)


class HandUpdates:
    """Samples followed steps, until hooks have reported a step of every optimizer."""

    name = "hand_updates"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._samples = Samples()
        self._observed: WeakIdSet[torch.optim.Optimizer] = WeakIdSet(())
        self._open: weakref.WeakKeyDictionary[torch.optim.Optimizer, Open] = weakref.WeakKeyDictionary()
        self._usual: weakref.WeakKeyDictionary[torch.optim.Optimizer, Usual] = weakref.WeakKeyDictionary()
        self._group = Group(())
        self._was_emitted = False

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        handles = [
            patch.backward(after=guard(self._after_backward)),
            optimizer_steps.before(guard(self._stepping)),
        ]
        if torch.distributed.is_available():
            handles.append(patch.function(torch.distributed, "all_reduce", after=guard(self._after_reduction)))
        self._group = Group(handles)
        return handles

    def finish(self, row: Row) -> None:
        for update in row.raw.get(KEY, ()):
            optimizer, scale = update.optimizer(), self._scale_of(row, update)
            if optimizer is None or scale < MIN_JUDGED_SCALE or not is_power_of_two(scale):
                continue
            data = self._usual.setdefault(optimizer, Usual()).judge(update, scale)
            if data is not None and not self._was_emitted:
                self._was_emitted = True
                own = {"own": True} if update.was.scale is None else {}
                line, name = call_site.line_at(update.was.place), type(optimizer).__name__
                row.events.append((EVENT, {"caller": "", "optimizer": name, "backward": line, **own, **data}))

    def _scale_of(self, row: Row, update: Update) -> float:
        """Returns the loss scale that the gradients were multiplied by, 0 if it is not known or there are several."""
        if update.was.scale is not None:
            return update.was.scale.number()
        if row.raw.get("scaled"):
            return 0.0
        own = self._session.own_scale
        scales = {own.factor(loss.parts) or own_scale(loss.parts) for loss in row.raw.get("losses", ())}
        return scales.pop() if len(scales) == 1 else 0.0

    def _after_backward(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        session = self._session
        self._open.clear()
        if not session.follows or patch.inside_backward() or session.watched.by_several_threads:
            return
        for optimizer in session.watched.optimizers:
            if optimizer not in self._observed and session.closure.optimizer is None:
                gradients = self._samples.read(optimizer)
                weights = None if gradients is None else self._samples.weights(optimizer)
                if gradients is not None and weights is not None:
                    self._open[optimizer] = Open(gradients, [], weights, self._scale_now(), call_site.place())

    def _scale_now(self) -> Transfer | None:
        """Returns the scale of the only GradScaler, if it has scaled the loss."""
        scalers = self._session.watched.scalers
        if not self._session.row.raw.get("scaled") or not scalers.at_most_one():
            return None
        scale = next((getattr(scaler, "_scale", None) for scaler in scalers), None)
        return async_copy.of(scale) if isinstance(scale, torch.Tensor) else None

    def _after_reduction(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Samples gradients again that the program has averaged with those of other ranks."""
        reduced = args[0] if args else kwargs.get("tensor")
        if result is not None or not isinstance(reduced, torch.Tensor):  # it may still run
            return
        for optimizer, was in self._open.items():
            if (found := self._samples.read_one(optimizer, reduced)) is not None:
                was.reduced.append(found)

    def _stepping(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if not optimizer_steps.is_replayed():
            self._observed.add(optimizer)
            self._open.pop(optimizer, None)
            if all(other in self._observed for other in self._session.watched.optimizers):
                self._group.pause()
            return
        was = self._open.pop(optimizer, None)
        after = None if was is None else self._samples.weights(optimizer)
        if was is None or after is None:
            return
        row = self._session.row
        update = Update(weakref.ref(optimizer), was, after, self._rate(optimizer))
        row.raw.setdefault(KEY, []).append(update)
        for sample in update.samples():
            if isinstance(sample, DeviceSample):
                row.wait_for(sample.transfer)
        if was.scale is not None:
            row.wait_for(was.scale)

    def _rate(self, optimizer: torch.optim.Optimizer) -> float:
        rates: set[Any] = {group.get("lr") for group in optimizer.param_groups}
        rate = rates.pop() if len(rates) == 1 else None
        return rate if isinstance(rate, float) and not self._samples.are_hooked(optimizer) else math.nan


def update_of(row: Row, optimizer: Any) -> Update | None:
    """Returns the last update of an optimizer's weights in the open step that no call has shown."""
    return next((found for found in reversed(row.raw.get(KEY, ())) if found.optimizer() is optimizer), None)


class Usual:
    """The last updates of one optimizer's weights with gradients that the program had divided by the scale."""

    def __init__(self) -> None:
        self._rates: deque[list[float]] = deque(maxlen=MAX_USUAL_STEPS)
        """The factors times the scale, by element."""
        self._sizes: deque[float] = deque(maxlen=MAX_USUAL_STEPS)
        """Typical gradients as backward() left them, over the scale."""

    def judge(self, update: Update, scale: float) -> dict[str, Any] | None:
        """Returns what shows that an update has used scaled gradients, or None; remembers a usual one."""
        factors, size = update.factors(), magnitude(HostSample(update.gradients())) / scale
        rates = self._usual_rates(len(factors))
        if rates and _is_factor(factors, rates, 1.0) and size * math.sqrt(scale) > typical(self._sizes):
            usual = abs(typical(rates))
            return {"scale": scale, "by_hand": True, "factor": abs(typical(factors)), "usual": usual / scale}
        if rates and _is_factor(factors, rates, 1 / scale**2):  # the earlier updates were those with scaled gradients
            self._rates.clear()
            self._sizes.clear()
        self._rates.append([factor * scale for factor in factors])
        self._sizes.append(size)
        return None

    def _usual_rates(self, count: int) -> list[float]:
        """Returns the typical rate of each element, [] without enough steps of so many elements."""
        steps = [rates for rates in self._rates if len(rates) == count]
        return [typical(one) for one in zip(*steps, strict=True)] if len(steps) >= MIN_USUAL_STEPS else []


def _factor(gradient: float, old: float, new: float) -> float:
    moved = old - new
    is_known = gradient and abs(moved) > MIN_MOVE * max(abs(old), abs(new)) and moved - moved == 0
    return moved / gradient if is_known else math.nan


def _is_factor(factors: Sequence[float], rates: Sequence[float], times: float) -> bool:
    """Whether the factors are the rates times this number, for nearly all elements."""
    pairs = zip(factors, rates, strict=True)
    found = [ratio for factor, rate in pairs if (ratio := factor / rate / times if rate else math.nan) == ratio]
    if len(found) < MIN_ELEMENTS or abs(typical(found) - 1) > TOLERANCE:
        return False
    return sum([abs(ratio - 1) <= SPREAD for ratio in found]) >= MIN_ALIKE_SHARE * len(found)
