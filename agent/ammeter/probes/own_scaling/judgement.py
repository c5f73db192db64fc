"""Judges what optimizers received: proves a scaler of the program's own, and finds mistakes in its use."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

from ammeter.probes.own_scaling.graph import Graph
from ammeter.probes.own_scaling.samples import is_equal, magnitude, typical
from ammeter.probes.own_scaling.steps import Pass, ScaledStep, Use
from ammeter.recording.loss_shares import MIN_OWN_SCALE, factors, is_power_of_two
from ammeter.recording.own_scale import OwnScale
from ammeter.torch_hooks import call_site

MIN_JUDGED_SCALE = 256.0
"""Smallest scale that is judged: ratios between its square root and itself may have other reasons."""

MIN_USUAL_SCALE = 1024.0
"""A power of two from here on that multiplies the loss of a float16 program is rather a loss scale than a weight."""

MIN_CONSTANT_STEPS = 4
"""Consecutive steps that show a division of gradients without a scale of the loss, and no step with both."""

MIN_SHRINKING = 32.0
"""Factor by which gradients are smaller than usual after a clip of scaled gradients."""

HISTORY_STEPS = 32
MIN_HISTORY_STEPS = 4

REMEMBERED_INTERVAL_STEPS = 4
"""Usual steps of which one is judged in full and remembered."""

USUAL_QUANTILE = 0.75
"""Quantile of the earlier steps that is usual: a fault may be in half of them."""

Found = tuple[str, dict[str, Any]]


class Judgement:
    """The judgement of one run; steps arrive in order.

    Attributes:
        wants_graph: whether the graph of the next loss has to be examined.
    """

    def __init__(self, own: OwnScale) -> None:
        self._own = own
        self._graph = Graph()
        self._received: deque[float] = deque(maxlen=HISTORY_STEPS)
        self._produced: deque[float] = deque(maxlen=HISTORY_STEPS)
        self._losses: deque[float] = deque(maxlen=HISTORY_STEPS)
        self._constant = self._usual_steps = 0
        self._is_inside = False
        """Whether the scale multiplies numbers of which the loss is a mean, so that the loss has no factor."""
        self.wants_graph = True

    def is_usual(self, step: ScaledStep) -> bool:
        """Whether a step is like most of a proven scaler, so that it needs no closer look."""
        if not self._own.value or len(step.passes) != 1:
            return False
        scale = self._scale(step.passes[0])
        self._usual_steps += 1
        is_remembered = self._usual_steps > MIN_HISTORY_STEPS and self._usual_steps % REMEMBERED_INTERVAL_STEPS
        return bool(scale and is_remembered) and step.is_usual(scale)

    def judge(self, use: Use, optimizer: Any, graph: Graph | None) -> Iterator[Found]:
        """Yields (event, data) of the mistakes in one optimizer's step."""
        if graph is not None:
            self._graph, self.wants_graph = graph, False
        if not self._own.value:
            self._prove(use)
        if not self._own.value:
            yield from self._unproven(use, optimizer)
            return
        scale = max([self._scale(scaled) for scaled in use.passes]) or self._own.value
        if scale < MIN_JUDGED_SCALE:
            return
        found = self._mistake(use, scale)
        if found is None:
            self._remember(use, scale)
            return
        event, place, data = found
        yield event, {"caller": call_site.line_at(place), "scale": scale, "optimizer": _name(optimizer), **data}

    def scale_when_read(self, use: Use) -> float:
        """Returns the scale in the gradients at torch's clip, or before the optimizer without one; 1 if divided.

        Gradients are read at that point.
        """
        scale = max([self._scale(scaled) for scaled in use.passes])
        if scale < MIN_JUDGED_SCALE or (_is_early(use, scale) and not self._late(use)):
            return 1.0
        found = use.found if use.clip is None else use.clip.before
        return scale if typical(found) > 1 / math.sqrt(scale) else 1.0

    def scale_after_backward(self, step: ScaledStep) -> float:
        """Returns the scale that is in the gradients after the last backward(); 1 for none."""
        scale = max([self._scale(scaled) for scaled in step.passes], default=0.0)
        is_divided = any(_is_early(use, scale) and not self._late(use) for _, use in step.uses()) if scale else True
        return 1.0 if scale < MIN_JUDGED_SCALE or is_divided else scale

    def take_for_scaled(self, step: ScaledStep) -> None:
        """Takes a usual scale of a float16 program as proven, if the division by it cannot be observed."""
        if step.graph is not None:
            self._graph, self.wants_graph = step.graph, False
        usual = max((scale for one in step.passes for scale in _candidates(one) if _is_usual(scale)), default=0.0)
        if usual and self._graph.is_float16 and not self._own.value:
            self._own.prove(usual)

    def _prove(self, use: Use) -> None:
        """Proves a scaler: the gradients are divided by a factor of the loss.

        In float16, a usual scale is also proven by a division by no less, which a clip has made larger, and by a
        program that updates the weights itself, so that a division cannot be observed. A scale that the graph does not
        show is proven by divisions by powers of two.
        """
        last = use.passes[-1]
        candidates = _candidates(last)
        exact = next((scale for scale in candidates if use.is_divided_by(scale)), 0.0)
        usual = max((scale for scale in candidates if _is_usual(scale)), default=0.0)
        divisor = _divisor(use)
        if exact:
            self._own.prove(exact)
        elif usual and self._graph.is_float16 and (use.ratio <= 4 / usual or use.by_hand):
            self._own.prove(usual)
        elif divisor and not candidates and self._may_hide(last, divisor) and self._graph.is_float16:
            self._constant += 1
            if self._constant >= MIN_HISTORY_STEPS:
                self._own.prove(divisor, is_hidden=True)
                self._is_inside = not last.is_opaque

    def _unproven(self, use: Use, optimizer: Any) -> Iterator[Found]:
        """Judges a mistake that is there from the first step on, in a program that uses float16."""
        last, divisor = use.passes[-1], _divisor(use)
        usual = max((scale for scale in _candidates(last) if _is_usual(scale)), default=0.0)
        may_hide = self._may_hide(last, divisor)
        is_not_scaled = last.is_plain and not (may_hide or _candidates(last) or divisor in (0, len(use.passes)))
        is_scale = usual > 0 and not use.by_hand and not self._graph.counts(usual)
        is_not_divided = is_scale and is_equal(use.found, 1.0, 1.0) and _uses_gradients(optimizer, usual, use.rate)
        if not self._graph.is_float16 or not (is_not_scaled or is_not_divided):
            self._constant = self._constant if may_hide else 0
            return
        self._constant += 1
        if is_not_scaled and self._constant < MIN_CONSTANT_STEPS:
            return
        data = {"optimizer": _name(optimizer), "own": True}
        if is_not_divided:
            place, event, data["scale"] = use.place, "usage.gradients_not_unscaled", usual
        else:
            place, event, data["scale"] = last.place, "usage.loss_not_scaled", divisor
            data |= _call(last)
        yield event, {"caller": call_site.line_at(place), **data}

    def _mistake(self, use: Use, scale: float) -> tuple[str, call_site.Place, dict[str, Any]] | None:
        """Returns (event, place, data) of the mistake in a step of a proven scaler."""
        passes, limit = use.passes, 1 / math.sqrt(scale)
        scaled = [one for one in passes if self._scale(one)]
        raw = [one for one in passes if self._is_raw(one, scale)]
        late = self._late(use)
        is_divided, is_early = use.ratio <= limit, _is_early(use, scale)
        if is_early and late:
            return "usage.mixed_scale", late[0].place, {"own": True, "after": "unscale_", **_call(late[0])}
        if raw and is_divided:
            return "usage.loss_not_scaled", raw[0].place, {"own": True, "scaled_too": bool(scaled), **_call(raw[0])}
        if scaled and not raw and not is_divided and not is_early and not use.by_hand:
            return "usage.gradients_not_unscaled", use.place, {"own": True}
        clip = use.clip
        if clip is not None and clip.limit < scale and is_divided and typical(clip.before) > limit:
            return "usage.clip_before_unscale", clip.place, {"own": True, clip.kind: clip.limit}
        if clip is None and is_divided and (left := self._shrinks(use, scale)):
            return "usage.clip_before_unscale", call_site.NOWHERE, {"own": True, "left": left}
        return None

    def _late(self, use: Use) -> list[Pass]:
        """The passes after a division that have added scaled gradients."""
        return [one for one in use.passes[use.divided :] if self._scale(one)]

    def _shrinks(self, use: Use, scale: float) -> float:
        """Returns the share of its usual size that is left of ordinary gradients, or 0.

        All elements have shrunk alike, by more than the scale. After a clip of large but unscaled gradients, a usual
        norm remains.
        """
        if len(self._received) < MIN_HISTORY_STEPS or not is_equal(use.found, use.ratio, 1.0):
            return 0.0
        left = magnitude(use.received) / _usual(self._received)
        is_ordinary = magnitude(use.produced) / scale * 8 > _usual(self._produced)
        is_small = 0 < left * MIN_SHRINKING < 1 and use.ratio * scale * MIN_SHRINKING < 1
        return left if is_ordinary and is_small else 0.0

    def _remember(self, use: Use, scale: float) -> None:
        for numbers, number in (
            (self._received, magnitude(use.received)),
            (self._produced, magnitude(use.produced) / scale),
        ):
            if number > 0:
                numbers.append(number)
        for one in use.passes:
            if one.loss is not None and (factor := self._scale(one)):
                number = abs(one.loss.number()) / factor
                if 0 < number < math.inf:
                    self._losses.append(number)

    def _scale(self, one: Pass) -> float:
        """Returns the scale that a pass multiplied its gradients by, 0 for none that is known."""
        factor = 0.0 if one.loss is None else self._own.factor(one.loss.parts)
        if factor:
            return factor
        if one.seed is not None and one.seed.number() >= MIN_OWN_SCALE:
            return one.seed.number()
        return self._own.value if self._is_hidden_in(one) else 0.0

    def _may_hide(self, one: Pass, divisor: float) -> bool:
        """Whether the loss may be multiplied by the divisor where its factors do not show it."""
        return one.is_opaque or (divisor > 0 and self._graph.may_hide(divisor))

    def _is_hidden_in(self, one: Pass) -> bool:
        """Whether a pass is taken to have a proven scale that its graph hides."""
        return self._own.is_hidden and (one.is_opaque or self._is_inside)

    def _is_raw(self, one: Pass, scale: float) -> bool:
        """Whether a loss has no scale: its graph shows none, and its value is the usual one without it."""
        if self._scale(one) or one.loss is None or self._is_hidden_in(one):
            return False
        if not self._losses:
            return one.is_plain
        return abs(one.loss.number()) < math.sqrt(scale) * _usual(self._losses)


def _is_early(use: Use, scale: float) -> bool:
    """Whether the gradients were divided before the last pass."""
    return use.early is not None and typical(use.early) <= 1 / math.sqrt(scale)


def _candidates(one: Pass) -> list[float]:
    """Returns the factors of a loss that may be a scale."""
    found = [] if one.loss is None else factors(one.loss.parts)
    if one.seed is not None:
        found = [*found, one.seed.number()]
    return [factor for factor in found if MIN_OWN_SCALE <= factor < math.inf]


def _is_usual(scale: float) -> bool:
    return scale >= MIN_USUAL_SCALE and is_power_of_two(scale)


def _divisor(use: Use) -> float:
    """Returns the power of two by which all sampled gradients were divided, or 0."""
    ratio = use.ratio
    divisor = 2.0 ** round(-math.log2(ratio)) if ratio > 0 else 0.0
    return divisor if divisor >= MIN_JUDGED_SCALE and is_equal(use.found, 1 / divisor, 0.9) else 0.0


def _usual(numbers: deque[float]) -> float:
    return sorted(numbers)[int(USUAL_QUANTILE * (len(numbers) - 1))]


def _uses_gradients(optimizer: Any, scale: float, rate: float) -> bool:
    """Whether an optimizer uses the gradients as they are, with a learning rate that is not divided by the scale.

    Of an optimizer that is not torch's, the change of the weights shows it.

    Args:
        rate: ratio of the change of the weights to the gradients, 0 if unknown.
    """
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not all(isinstance(number, float) and number * scale >= 1 for number in rates):
        return False
    if type(optimizer).__module__.startswith("torch.optim."):
        return getattr(optimizer, "grad_scale", None) is None
    return bool(rate * 2 >= min(rates))


def _call(one: Pass) -> dict[str, str]:
    return {"call": one.call} if one.call else {}


def _name(optimizer: Any) -> str:
    return type(optimizer).__name__
