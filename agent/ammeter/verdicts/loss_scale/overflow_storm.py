"""overflow-storm: the scale repeatedly grows too high for the gradients, and steps are skipped."""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter.verdicts.framework.learning_rates import Rates, stating_jumps
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View

WINDOW_STEPS = 200
MIN_SKIPS = 8
"""Skipped steps within WINDOW_STEPS that open the verdict: 4 % of the work is lost. With torch's growth_interval of
2000 a scale at its ceiling costs one step in 2000; a growth every 25 steps costs these 4 %."""

MIN_RISES = 3
"""Rises of the scale, or skips without a fall, among these skips. A scale that only falls, even to 0, approaches a
working scale or collapses; neither is a storm."""

CALIBRATED_STEPS = 20
"""Applied steps in a row that end the calibration of a new scaler. Its first growth ends it too."""

MAX_SKIP_SHARE = 0.1
"""Maximum share of skipped steps at a scale that the gradients tolerate."""

MAX_GROWTH_FACTOR = 16.0
"""Largest rise in one step that counts as a growth by GradScaler, whose growth_factor is 2 by default. A larger rise
is a call of the program."""

MAX_LEVELS = 12
"""Scales with separate counts; a sawtooth has two to four."""

SPARE_BITS = 6
"""Bits between the largest gradient that was read, at the scale of a skipped step, and 65504, from which an overflow is
unlikely: the same number as for nonfinite-gradient, which has its source."""


class Level(msgspec.Struct, frozen=True, array_like=True):
    scale: float
    applied: int = 0
    skipped: int = 0


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    settled: bool = False
    streak: int = 0
    scale: float = math.nan
    was_skipped: bool = False
    skips: tuple[int, ...] = ()
    """The last MIN_SKIPS skipped steps after the calibration. `rises` has the last MIN_RISES steps at which the scale
    had risen."""
    rises: tuple[int, ...] = ()
    first_skip: int = -1
    levels: tuple[Level, ...] = ()
    interval: int = 0
    factor: float = 1.0
    peak: float = 0.0
    """Largest unscaled |gradient| that was read."""
    steps_applied: int = 0
    steps_skipped: int = 0
    top: float = 0.0
    """Highest scale of a skipped step. These three include the steps at scales that `levels` has dropped."""
    dropped: bool = False
    """Whether it has dropped any. The counts of a scale that came back cover its last steps."""
    rates: Rates = Rates()
    tracker: int = -1
    """Growth tracker before the last step, -1 if that was skipped. GradScaler lets the scale grow when it is one below
    the growth interval."""


@stating_jumps
def judge(state: State, view: View) -> tuple[State, Finding | None]:
    after = _rows(state, view) if len(view) else state
    return after, changed(_conclude, state, after)


def _rows(state: State, rows: View) -> State:
    if not state.skips and not state.was_skipped and not (rows.scalar("skipped") > 0).any():
        return _quiet(state, rows)
    names = ("skipped", "applied", "scale", "growth_tracker", "grad_absmax")
    for step, (skipped, applied, scale, tracker, absmax) in rows.records(*names):
        if not (scale >= 0 and (skipped > 0 or applied > 0)):
            continue
        state = _with_scale(state, step, scale)
        state = _skipped(state, step) if skipped > 0 else _applied(state, tracker, absmax)
        state = _with_level(state, scale, skipped > 0)
    return state


def _quiet(state: State, rows: View) -> State:
    """Returns the result of _rows if neither rows nor state have a skip."""
    scales = rows.scalar("scale")
    scales = scales[(scales >= 0) & (rows.scalar("applied") > 0)]
    if not scales.size:
        return state
    last = float(scales[-1])
    if state.settled:
        return state if last == state.scale else replace(state, scale=last)
    streak = state.streak + scales.size
    rose = bool((scales[1:] > scales[:-1]).any()) or float(scales[0]) > state.scale
    if rose or streak >= CALIBRATED_STEPS:
        return replace(state, scale=last, settled=True, streak=0)
    return replace(state, scale=last, streak=streak)


def _with_scale(state: State, step: int, scale: float) -> State:
    """Processes the scale of a step: a rise, or no fall after a skipped step."""
    if state.skips and step - state.skips[-1] > WINDOW_STEPS:
        state = replace(state, skips=(), rises=(), opened=state.opened.over())
    rose = scale > state.scale or (state.was_skipped and scale == state.scale > 0)
    if rose and state.skips:
        factor = max(state.factor, scale / state.scale if state.scale > 0 else 1.0)
        interval = max(state.interval, state.tracker + 1)
        state = replace(state, rises=(*state.rises, step)[-MIN_RISES:], factor=factor, interval=interval)
    return replace(state, scale=scale, settled=state.settled or rose, streak=0 if rose else state.streak)


def _skipped(state: State, step: int) -> State:
    if not state.settled:
        return replace(state, was_skipped=True, streak=0)
    if not state.skips:
        state = replace(state, first_skip=step, levels=(), interval=0, factor=1.0, peak=0.0)
        state = replace(state, steps_applied=0, steps_skipped=0, top=0.0, dropped=False)
    state = replace(state, was_skipped=True, streak=0, skips=(*state.skips, step)[-MIN_SKIPS:], tracker=-1)
    if state.opened.active or _stormy(state, step):
        return replace(state, opened=state.opened.at(state.first_skip, step))
    return state


def _stormy(state: State, step: int) -> bool:
    if len(state.skips) < MIN_SKIPS or len(state.rises) < MIN_RISES:
        return False
    return step - state.skips[0] < WINDOW_STEPS and step - state.rises[0] < WINDOW_STEPS


def _applied(state: State, tracker: float, absmax: float) -> State:
    state = replace(state, was_skipped=False)
    if not state.settled:
        streak = state.streak + 1
        state = replace(state, settled=streak >= CALIBRATED_STEPS, streak=streak % CALIBRATED_STEPS)
    if not state.skips:
        return state
    tracker = tracker if tracker >= 0 else -1
    return replace(state, tracker=int(tracker), peak=max(state.peak, absmax if absmax > 0 else 0.0))


def _with_level(state: State, scale: float, skipped: bool) -> State:
    if not state.skips:
        return state
    state = _with_totals(state, scale, skipped)
    levels = {level.scale: level for level in state.levels}
    level = levels.get(scale, Level(scale))
    levels[scale] = Level(scale, level.applied + (not skipped), level.skipped + skipped)
    if len(levels) > MAX_LEVELS:
        del levels[min(levels, key=lambda other: (levels[other].applied + levels[other].skipped, other))]
        state = replace(state, dropped=True)
    return replace(state, levels=tuple(levels[known] for known in sorted(levels)))


def _with_totals(state: State, scale: float, skipped: bool) -> State:
    """Counts the step. A state of an earlier version has its counts in `levels` alone."""
    applied = max(state.steps_applied, sum(level.applied for level in state.levels))
    skips = max(state.steps_skipped, sum(level.skipped for level in state.levels))
    top = max([state.top, *(level.scale for level in state.levels if level.skipped), scale if skipped else 0.0])
    return replace(state, steps_applied=applied + (not skipped), steps_skipped=skips + skipped, top=top)


def _conclude(state: State) -> Finding:
    applied, skipped, top = state.steps_applied, state.steps_skipped, state.top
    tolerated = _tolerated_scale(state)
    share = skipped / max(1, applied + skipped)
    spare = math.log2(FLOAT16_MAX / (state.peak * tolerated)) if state.peak > 0 else None
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(state),
        cause=f"{_why(state)}: {skipped} of {applied + skipped} steps were skipped {state.opened.since}, at scales of"
        f" up to {wording.scale(top)}. {_unlikely(state)}{_levels(state)}",
        fix=_fix(state, tolerated, spare),
        evidence={
            "skipped_share": round(share, 4),
            "steps_skipped": skipped,
            "steps_applied": applied,
            "highest_scale": top,
            "bearable_scale": tolerated,
            "growth_interval": state.interval or None,
            "growth_factor": state.factor if state.factor > 1 else None,
            "headroom_bits": None if spare is None else round(spare, 1),
            "skips_with_headroom": _skips_with_room(state),
        },
        **lifecycle_fields(state.opened),
    )


def _title(state: State) -> str:
    if _skips_with_room(state):
        return f"{wording.count(state.steps_skipped, 'step')} skipped, though the loss scale leaves room"
    if state.factor <= 1:
        return "Steps are skipped because the loss scale does not fall"
    if state.factor > MAX_GROWTH_FACTOR:
        return "Steps are skipped because the loss scale jumps too high"
    return f"Steps are skipped because the loss scale grows {_growth(state)}"


def _growth(state: State) -> str:
    """Returns '2-fold after every 20 applied steps'; a scale without a growth tracker has no known interval."""
    steps = "applied step" if state.interval == 1 else f"{state.interval} applied steps"
    return f"{state.factor:g}-fold" + (f" after every {steps}" if state.interval else "")


def _why(state: State) -> str:
    overflow = "" if _skips_with_room(state) else ", too high for the gradients, which then overflow"
    if state.factor <= 1:
        return "The loss scale does not fall after a skipped step"
    if state.factor > MAX_GROWTH_FACTOR:
        return f"The loss scale rises by a factor of up to 2^{math.log2(state.factor):.0f} in one step{overflow}"
    return f"The loss scale grows {_growth(state)}{overflow}"


def _skips_with_room(state: State) -> int:
    """Returns the number of skips at scales that leave usual gradients SPARE_BITS.

    Without a growth tracker it is a program's own scale: its gradients may be clipped before they are read.
    """
    if not (state.peak > 0 and state.interval):
        return 0
    limit = FLOAT16_MAX / (state.peak * 2**SPARE_BITS)
    return sum(level.skipped for level in state.levels if level.scale <= limit)


def _unlikely(state: State) -> str:
    """Describes the evidence against an overflow."""
    skips = _skips_with_room(state)
    if not skips:
        return ""
    return (
        f"At {skips} of these skips the scale left the largest gradient that was read at least {SPARE_BITS} bits (a"
        f" factor of {2**SPARE_BITS}) below 65504, so an overflow is unlikely there. "
    )


def _fix(state: State, tolerated: float, spare: float | None) -> str:
    exponent = math.floor(math.log2(tolerated)) if tolerated > 0 else 0
    factor = ", growth_factor=2.0" if state.factor > 2 else ""
    headroom = ""
    if spare is not None:
        headroom = f" At {2.0**exponent:g} the largest gradient that was read becomes"
        headroom += f" {wording.figure(2.0**exponent * state.peak)}; float16 ends at 65504."
    remedy = (
        f"use GradScaler(init_scale=2.0**{exponent}{factor}, growth_interval=2000), which tries a higher scale once in"
        f" 2000 steps and halves it when a gradient overflows.{headroom}"
    )
    if state.factor > MAX_GROWTH_FACTOR:
        call = "scaler.update(new_scale=...)"
        remedy = f"if the program sets the scale with {call}, remove that call. Otherwise {remedy}"
    if _skips_with_room(state):
        return (
            f"Repeat the batch of a skipped step, such as step {state.opened.last}, with GradScaler(init_scale=1). If"
            " its gradients are NaN or Inf there, too, check the backward pass for a square root, norm or division of a"
            f" value that can be zero. If they are finite, {remedy}"
        )
    return wording.sentence(remedy)


def _tolerated_scale(state: State) -> float:
    """Returns the largest scale at which steps were applied and hardly any was skipped.

    If there is none, returns half of the lowest scale.
    """
    clean = _clean_level(state)
    return clean.scale if clean else min((level.scale for level in state.levels), default=state.scale) / 2


def _clean_level(state: State) -> Level | None:
    clean = [level for level in state.levels if level.applied >= 3 and level.skipped <= MAX_SKIP_SHARE * level.applied]
    return max(clean, key=lambda level: level.scale, default=None)


def _levels(state: State) -> str:
    clean = _clean_level(state)
    if clean is None:
        return "At each scale that was tried more than one step in ten was skipped."
    last = "the last " if state.dropped else ""
    were = "were" if clean.skipped != 1 else "was"
    skipped = f"{clean.skipped or 'none'} of {last}{clean.applied + clean.skipped} steps {were} skipped"
    if _skips_with_room(state):
        return f"At {wording.scale(clean.scale)} {skipped}."
    return f"At {wording.scale(clean.scale)} {skipped}, so the gradients tolerate about that scale."


VERDICT = Verdict(
    id="overflow-storm",
    severity="ticket",
    title="Overflow storm",
    question="Are many steps skipped because the scale keeps growing too high?",
    columns=("skipped", "applied", "scale", "growth_tracker", "grad_absmax", "optimizer_lr"),
    events=(),
    state=State,
    history=("scale", "skipped", "applied"),
    judge=judge,
    explains=("lopsided-step", "scheduler-ahead"),
)
