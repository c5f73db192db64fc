"""Decides from two runs whether mixed precision changed the training. The functions are pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ammeter.canary.curves import LossDifference, NormDifference, loss_difference, norm_difference
from ammeter.canary.observed import GRAD_NORM, Observed
from ammeter.canary.runs import Ended
from ammeter.report.gate.checks import Check, memory_check, speed_check
from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.run_comparison import RunComparison

Result = Literal["ok", "differs", "slower", "not comparable"]

EXIT_CODES: dict[Result, int] = {"ok": 0, "differs": 1, "slower": 1, "not comparable": 2}


@dataclass(frozen=True)
class Decision:
    """The decision, the reasons for it, and what else to know.

    Attributes:
        checks: of the gate, for speed and memory.
    """

    result: Result
    reasons: list[str]
    notes: list[str]
    loss: LossDifference | None = None
    norm: NormDifference | None = None
    checks: tuple[Check, ...] = ()


def decide(plain: Observed, amp: Observed | None, amp_end: Ended) -> Decision:
    """Decides about an AMP run from the float32 run before it, which has no obstacle()."""
    if amp is None or amp.steps == 0:
        if amp_end.failed:
            return Decision(
                "differs", [f"the AMP run {amp_end.text} before its first step; the float32 run did not"], []
            )
        return Decision("not comparable", [f"the AMP run {amp_end.text} and no step of it was watched"], [])
    pair = RunComparison(amp.history, plain.history)
    loss, norm = loss_difference(pair), norm_difference(pair, GRAD_NORM)
    checks = (speed_check(pair, None), memory_check(pair, None))
    notes = list(_notes(plain, amp, loss, checks))
    if unlike := _unlike(amp, pair):
        return Decision("not comparable", [unlike], notes, loss, norm, checks)
    if reasons := list(_differences(amp, amp_end, plain, loss, norm)):
        return Decision("differs", reasons, notes, loss, norm, checks)
    if loss is None and norm is None:
        reason = "fewer than 20 steps of both runs have a loss or a gradient norm"
        return Decision("not comparable", [reason], notes, checks=checks)
    if pair.speed is not None and checks[0].within is False and pair.speed.clear:
        return Decision("slower", [f"time per step: {checks[0].text}"], notes, loss, norm, checks)
    return Decision("ok", list(_agreements(loss, norm, checks[0])), notes, loss, norm, checks)


def obstacle(plain: Observed | None, end: Ended) -> str:
    """Returns why the float32 run is none, so that nothing can be compared with it; '' if it is one."""
    if plain is None or plain.steps == 0:
        return f"the float32 run {end.text} and no step of it was watched"
    if end.failed:
        error = f": {plain.ending}" if plain.ending else ""
        return (
            f"the float32 run {end.text} after {wording.count(plain.steps, 'step')}{error}. A program whose own casts"
            " expect autocast cannot run without it"
        )
    if plain.autocast:
        dtypes = wording.listed(sorted(plain.autocast))
        return f"the float32 run has entered autocast in {dtypes}, in a way that cannot be switched off"
    if plain.scaled and not plain.own_scale:
        return "the float32 run has an enabled GradScaler, made in a way that cannot be switched off"
    if plain.history.precision not in ("float32", None):
        return (
            f"the weights are {plain.history.precision}, such as after model.half(); switching autocast off leaves them"
            " so, and there is no float32 run to compare with"
        )
    return ""


def _unlike(amp: Observed, pair: RunComparison) -> str:
    """Returns why a difference of the two runs would say nothing about mixed precision; '' if it would."""
    if not amp.autocast and not amp.scaled:
        return "the command uses no autocast and no GradScaler, so both runs compute the same"
    return pair.exclusion("validation") or ""


def _differences(
    amp: Observed, amp_end: Ended, plain: Observed, loss: LossDifference | None, norm: NormDifference | None
) -> Iterator[str]:
    if amp_end.failed:
        error = f": {amp.ending}" if amp.ending else ""
        yield f"the AMP run {amp_end.text} after {wording.count(amp.steps, 'step')}{error}; the float32 run did not"
    if loss is not None and loss.first_nonfinite is not None:
        yield f"the loss is not finite at step {loss.first_nonfinite}, and finite there in float32"
    elif loss is not None and loss.differs:
        yield f"{_loss_text(loss)}, more than {wording.percent(loss.limit)}, in three quarters of these steps"
    if norm is not None and norm.differs:
        yield f"the gradient norm is {norm.ratio:.3g} times that in float32, in the last quarter of the steps of both"
    never = amp.history.curve("applied")
    if len(never) and not never.values.any() and plain.history.curve("applied").values.any():
        yield f"no step of the AMP run was applied: all {wording.count(len(never), 'step')} were skipped"


def _agreements(loss: LossDifference | None, norm: NormDifference | None, speed: Check) -> Iterator[str]:
    if loss is not None:
        yield _loss_text(loss)
    if norm is not None:
        yield f"the gradient norm is {norm.ratio:.3g} times that in float32"
    unclear = "; not slower, as less than three quarters of the steps take longer" if speed.within is False else ""
    yield f"time per step: {speed.text}{unclear}"


def _loss_text(loss: LossDifference) -> str:
    word = "higher" if loss.share > 0 else "lower"
    of = "what it fell in float32" if loss.of_fall else "the loss in float32"
    return (
        f"the loss is {word} by {wording.percent(abs(loss.share))} of {of}, in the last quarter of {loss.steps} common"
        f" steps ({loss.run:.4g} against {loss.baseline:.4g})"
    )


def _notes(plain: Observed, amp: Observed, loss: LossDifference | None, checks: tuple[Check, ...]) -> Iterator[str]:
    parts = [f"autocast ({wording.listed(sorted(amp.autocast))})"] if amp.autocast else []
    if amp.scaled and not plain.scaled:
        parts.append("GradScaler")
    yield f"switched off in the float32 run: {wording.listed(parts) if parts else 'nothing'}"
    if plain.own_scale:
        yield "not switched off: a loss scale of the program's own, which the float32 run also has"
    if plain.halves:
        yield f"not switched off: weights in {wording.listed(sorted(plain.halves))}, which both runs have"
    if loss is not None and not loss.starts_alike:
        yield (
            f"the first losses differ by {wording.percent(loss.start_share)}: the runs do not start alike. Set the seed"
            f" in the program; until then, losses count as different from {wording.percent(loss.limit)} on"
        )
    skipped = amp.history.curve("skipped").values
    if (skipped > 0).any():
        yield f"the AMP run skipped {int((skipped > 0).sum())} of {wording.count(amp.steps, 'step')}"
    if checks[1].within is False:
        yield f"device memory: {checks[1].text}"
