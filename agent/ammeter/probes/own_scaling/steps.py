"""The sampled gradients of one step, and what became of them between backward() and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ammeter.probes.own_scaling.samples import Ratios, Sample, is_divided, is_equal, product, ratios, typical
from ammeter.recording.losses import BackwardLoss
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.loss_graph import MEAN

BACKWARD, RESUMED, CLIPPED, STEP = "backward", "resumed", "clipped", "step"
MAX_NORM, CLIP_VALUE = "max_norm", "clip_value"
"""Kinds of points: after backward(), before another one, after torch's clip, before step(), and before torch's clip."""

_USUAL = ((BACKWARD, STEP), (BACKWARD, MAX_NORM, CLIPPED, STEP), (BACKWARD, CLIP_VALUE, CLIPPED, STEP))

MAX_POINTS = 64
"""Points of one step and optimizer that are kept; a step with more micro-batches is not judged."""


class Pass(msgspec.Struct):
    """One backward pass.

    Attributes:
        loss: the recorded loss, None if it is no number.
        seed: the gradient that the caller gave to backward(), if it is one number.
        is_opaque: whether the graph may hide a factor of the loss.
        call: the function that computed the gradients, if it is not backward().
    """

    loss: BackwardLoss | None
    seed: Transfer | None
    place: call_site.Place
    is_opaque: bool
    call: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether the loss is a mean whose factors are all known."""
        return not self.is_opaque and self.loss is not None and all(part.kind == MEAN for part in self.loss.parts)


class Point(NamedTuple):
    """Sampled gradients, None for a missing one.

    number: the pass of BACKWARD, the limit of a clip, or 1 for a STEP that may be the program's own update.
    """

    kind: str
    sample: Sample | None
    number: float
    place: call_site.Place


class ScaledStep(msgspec.Struct):
    """What is recorded of one step.

    Attributes:
        passes: the backward passes.
        points: optimizer id -> points in order.
        graph: properties of the loss's graph, if it was examined.
        weights: optimizer id -> sampled weights before and after step(), while no scaler is proven.
        read_early: ids of the optimizers whose gradients were read directly after the last backward().
    """

    passes: list[Pass] = msgspec.field(default_factory=list)
    points: dict[int, list[Point]] = msgspec.field(default_factory=dict)
    graph: Any = None
    losses_before: int = 0
    weights: dict[int, tuple[Sample, Sample | None]] = msgspec.field(default_factory=dict)
    read_early: set[int] = msgspec.field(default_factory=set)

    def add(self, key: int, point: Point) -> None:
        self.points.setdefault(key, []).append(point)

    def note_reading(self, key: int) -> None:
        """Records that all gradients of an optimizer were read before the next point, its first clip or its step."""
        if all(point.kind in (BACKWARD, RESUMED) for point in self.points.get(key, ())):
            self.read_early.add(key)

    def is_unsampled(self) -> bool:
        """Whether steps of optimizers were found only when their gradients had been discarded."""
        last = [points[-1] for points in self.points.values()]
        return bool(last) and all(point.kind == STEP and point.sample is None for point in last)

    def is_usual(self, scale: float) -> bool:
        """Whether there is one backward pass, and a division by the scale comes directly after it."""
        for points in self.points.values():
            if tuple(point.kind for point in points) not in _USUAL:
                return False
            produced, divided = points[0].sample, points[1].sample
            if produced is None or divided is None or not is_divided(produced, divided, scale):
                return False
        return len(self.passes) == 1 and bool(self.points)

    def uses(self) -> Iterator[tuple[int, Use]]:
        """Yields (optimizer id, use) for each optimizer that stepped."""
        for key, points in self.points.items():
            if len(points) <= MAX_POINTS and points[-1].kind == STEP:
                use = _use(self.passes, points)
                if use is not None:
                    use.rate = self._rate(key, use)
                    yield key, use

    def _rate(self, key: int, use: Use) -> float:
        """Returns the ratio of the change of the weights to the gradients that the optimizer received."""
        before, after = self.weights.get(key, (None, None))
        if before is None or after is None or len(before.values) != len(use.received.values):
            return 0.0
        moves = [abs(new - old) for old, new in zip(before.values, after.values, strict=True)]
        rates = [move / abs(grad) for move, grad in zip(moves, use.received.values, strict=True) if grad]
        rate = typical(rates)
        return rate if rate == rate else 0.0


class Clip(msgspec.Struct):
    """A clip by torch. kind: MAX_NORM or CLIP_VALUE. before: ratios from the last backward() to the clip."""

    kind: str
    limit: float
    place: call_site.Place
    before: Ratios


class Use(msgspec.Struct):
    """What an optimizer received of the gradients that were accumulated since their last reset.

    Attributes:
        passes: the backward passes of these gradients.
        divided: how many of them are older than the change `early`.
        early: ratios of a change that made the gradients smaller before another backward().
        found: ratios from the last backward() to step(), without torch's clips.
        clip: the last of torch's clips.
        produced, received: the samples after the last backward() and before step().
        by_hand: whether the program may have updated the weights itself, and divided the gradients as it used them.
        rate: ratio of the change of the weights to the gradients, 0 if unknown.
    """

    passes: list[Pass]
    divided: int
    early: Ratios | None
    found: Ratios
    clip: Clip | None
    produced: Sample
    received: Sample
    place: call_site.Place
    by_hand: bool = False
    rate: float = 0.0

    @property
    def ratio(self) -> float:
        return typical(self.found)

    def is_divided_by(self, scale: float) -> bool:
        """Whether the gradients were divided by exactly this number, at last or before another backward()."""
        return any(found is not None and is_equal(found, 1 / scale) for found in (self.found, self.early))


def _use(passes: list[Pass], points: list[Point]) -> Use | None:
    used: list[Pass] = []
    divided, clip = 0, None
    early: Ratios | None = None
    found: Ratios | None = None
    produced = last = None
    for kind, sample, number, place in points:
        if kind == RESUMED and (sample is None or not any(sample.values)):  # reset
            used, divided, early, last = [], 0, None, None
            continue
        if sample is None:
            return None
        if kind == BACKWARD:
            used.append(passes[int(number)])
            found, clip, produced = None, None, sample
        elif kind != CLIPPED:
            change: Ratios | None = None if last is None else ratios(last, sample)
            if change is None:
                return None
            if kind == RESUMED:
                divided, early = (len(used), change) if typical(change) < 1 else (divided, early)
            else:
                found = change if found is None else product(found, change)
                clip = clip if kind == STEP else Clip(kind, number, place, found)
        last = sample
    if not used or produced is None or last is None or found is None or typical(found) != typical(found):
        return None
    return Use(used, divided, early, found, clip, produced, last, points[-1].place, points[-1].number > 0)
