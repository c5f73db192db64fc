"""ranks-disagree: ranks of one model have different weights or loss scales, or one of them has stopped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, lifecycle_fields
from ammeter.verdicts.framework.rank_alignment import AHEAD_SECONDS, AlignedSteps, Standing
from ammeter.verdicts.processes import disagreement_wording as wording
from ammeter.verdicts.processes import replica_weights
from ammeter.verdicts.processes.replica_weights import MAX_LISTED_RANKS, Weights
from ammeter.wire.columns import Mask, measured

MIN_DIFFERENT_STEPS = 3
"""Steps in a row with different scales, for ranks that had agreed before. They agree if scale and number of good steps
since its last change are equal: scalers with the same inputs agree in every step."""

MIN_DIFFERENT_STEPS_UNAGREED = 20
"""The same for ranks that have never agreed. watch() may have been called some steps later on one of them; each skip
then makes them differ for that many steps, and no longer."""

AHEAD_STEPS = 100
"""Steps by which the others are ahead of a stopped rank, in addition to AHEAD_SECONDS: so many prove that they do not
wait for it."""

MIN_STEPS_APART = 3
"""Different norms of scaled gradients in a row after which ranks no longer share them, as when a program averages
weights instead from some step on. Scales that part after that may differ. Norms that underflow differ now and then."""

MAX_STEPS_SINCE_SKIP = 5
"""Maximum steps between a skip on some ranks and the first different scale that it explains."""


MIN_REDUCED_SHARE = 0.5
"""Elements that a program passes to all_reduce() after backward(), over those of its trained weights, from which they
are the gradients of the ranks' one model, and no metrics."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    reached: int = -1
    """The last step that was compared."""
    coupled: bool = False
    """Whether the ranks were seen to share gradients. Ranks that train separate models may differ."""
    agreed: bool = False
    different: int = 0
    since: int = -1
    lone_skip: int = -1
    """`lone_skip`: last step that only some ranks skipped. `broken`: the ranks whose loss was not finite there."""
    broken: tuple[int, ...] = ()
    differing: tuple[int, ...] = ()
    """The differing ranks. `differing` has the first MAX_LISTED_RANKS of `differing_count`, among `ranks` ranks."""
    differing_count: int = 0
    ranks: int = 0
    scale: float = 0.0
    usual: float = 0.0
    """`scale`: scale of the first differing rank. `usual`: scale of the others."""
    ahead: int = 0
    """Steps by which the others are ahead of a stopped rank."""
    weights: Weights = Weights()
    apart: int = 0
    """Steps with different norms of scaled gradients since the last step with equal ones."""
    has_equal_norms: bool = False
    reduces: bool = False
    """Whether the program itself passed its gradients to all_reduce() when that was read last."""


def judge(state: State, aligned: AlignedSteps) -> tuple[State, Finding | None]:
    before = state
    if len(aligned):
        state = _steps(state, aligned)
        state = replace(state, weights=replica_weights.compare(state.weights, aligned))
    if aligned.standings and state.coupled and not state.opened.active:
        state = _waiting(state, aligned.standings)
    finding = _conclude(state)
    return state, finding if finding != _conclude(before) else None


def _steps(state: State, aligned: AlignedSteps) -> State:
    scales, skipped = aligned.column("scale"), aligned.column("skipped") > 0
    apart = _steps_apart(state, aligned)
    reduces = _reduces(state, aligned)
    norms = replica_weights.norms_of(aligned)
    has_equal_norms = state.has_equal_norms or bool(norms.are_equal.any())
    is_shared = aligned.sharded | (apart < MIN_STEPS_APART) | (reduces & (not has_equal_norms))
    different = measured(scales).all(axis=0) & (scales.max(axis=0) != scales.min(axis=0))
    lone_skip = measured(aligned.column("skipped")).all(axis=0) & (skipped.any(axis=0) != skipped.all(axis=0))
    is_coupled = state.coupled or aligned.sharded or has_equal_norms or bool(reduces.any())
    state = replace(state, coupled=is_coupled, has_equal_norms=has_equal_norms, reduces=bool(reduces[-1]))
    agreeing = _agree(aligned) & ~different
    begin = 0 if state.different else _first((different & is_shared) | lone_skip, len(aligned))
    state = replace(state, agreed=state.agreed or bool(agreeing[:begin].any()))
    for at in range(begin, len(aligned)):
        counts = bool(different[at] and (state.different or is_shared[at]))
        state = _step(state, aligned, at, counts, bool(lone_skip[at]))
        state = replace(state, agreed=True) if agreeing[at] and not state.agreed else state
    return replace(state, reached=int(aligned.steps[-1]), apart=int(apart[-1]))


def _step(state: State, aligned: AlignedSteps, at: int, different: bool, lone_skip: bool) -> State:
    step = int(aligned.steps[at])
    if lone_skip and not (different or state.opened.active):  # else it may follow from the scale that differs already
        losses = aligned.column("loss")[:, at]
        bad = np.flatnonzero(measured(losses) & ~np.isfinite(losses)).tolist()
        state = replace(state, lone_skip=step, broken=tuple(aligned.ranks[index] for index in bad)[:MAX_LISTED_RANKS])
    if not different:
        return replace(state, different=0) if state.different else state
    if state.opened.active:
        return replace(state, opened=state.opened.until(step), different=1)
    explained = 0 <= step - state.lone_skip <= MAX_STEPS_SINCE_SKIP and state.lone_skip >= 0
    since = state.since if state.different else state.lone_skip if explained else step
    state = replace(state, different=state.different + 1, since=since)
    if state.different < (MIN_DIFFERENT_STEPS if state.agreed else MIN_DIFFERENT_STEPS_UNAGREED) or not state.coupled:
        return state
    return _differ(state, aligned.ranks, aligned.column("scale")[:, at].tolist(), step)


def _differ(state: State, ranks: Sequence[int], scales: Sequence[float], step: int) -> State:
    """Selects the ranks whose scale is not that of the majority.

    If there is no majority, the ranks with the lower scale are selected, because they skipped.
    """
    usual = max(sorted(set(scales)), key=lambda scale: (scales.count(scale), scale))
    differing = [rank for rank, scale in zip(ranks, scales, strict=True) if scale != usual]
    return replace(
        state,
        opened=state.opened.at(state.since, step),
        differing=tuple(differing[:MAX_LISTED_RANKS]),
        differing_count=len(differing),
        ranks=len(ranks),
        scale=scales[ranks.index(differing[0])],
        usual=usual,
        lone_skip=state.lone_skip if state.since == state.lone_skip else -1,
    )


def _waiting(state: State, standings: Sequence[Standing]) -> State:
    last = min(standings, key=lambda standing: (not standing.may_wait, standing.step))
    ahead = [
        standing
        for standing in standings
        if standing.step - last.step >= AHEAD_STEPS and standing.time - last.time >= AHEAD_SECONDS * 10**9
    ]
    if not last.may_wait or not ahead:
        return state
    furthest = max(standing.step for standing in ahead)
    return replace(
        state,
        opened=state.opened.at(last.step, furthest),
        differing=(last.rank,),
        differing_count=1,
        ranks=len(standings),
        ahead=furthest - last.step,
    )


def _steps_apart(state: State, aligned: AlignedSteps) -> npt.NDArray[np.int64]:
    """Returns the number of different norms since the last equal ones, at each step.

    Ranks with other scales share scaled gradients, or unscaled ones if the program reduces them later.
    """
    scaled = replica_weights.norms_of(aligned)
    unscaled = replica_weights.norms_of(aligned, are_scaled=False)
    count = state.apart + np.cumsum(scaled.differ & unscaled.differ)
    equal = scaled.are_equal | unscaled.are_equal
    apart: npt.NDArray[np.int64] = count - np.maximum.accumulate(np.where(equal, count, 0))
    return apart


def _reduces(state: State, aligned: AlignedSteps) -> Mask:
    """Selects steps in which the program itself reduces its gradients, as far as it was read last.

    Ranks whose optimizers have parts of the model have other norms, although they share all gradients.
    """
    shares = aligned.column("reduced_share")
    last = np.maximum.accumulate(np.where(measured(shares).all(axis=0), np.arange(len(aligned)), -1))
    most = np.all(shares >= MIN_REDUCED_SHARE, axis=0, keepdims=True)[0]
    reduces: Mask = ((last >= 0) & most[last]) | ((last < 0) & state.reduces)
    return reduces


def _agree(aligned: AlignedSteps) -> Mask:
    """Selects steps at which all scalers have the same scale and growth tracker."""
    columns = [aligned.column(name) for name in ("scale", "growth_tracker")]
    scales, trackers = (measured(column).all(axis=0) & (column.max(axis=0) == column.min(axis=0)) for column in columns)
    agree: Mask = scales & trackers
    return agree


def _first(where: Mask, otherwise: int) -> int:
    indices = np.flatnonzero(where)
    return int(indices[0]) if indices.size else otherwise


def _conclude(state: State) -> Finding | None:
    """Returns the finding on the weights or the one on scales and steps: the active one, else the earlier one."""
    of_steps, of_weights = state.opened, state.weights.opened
    if not of_steps.times and not of_weights.times:
        return None
    is_of_weights = not of_steps.times or (
        of_weights.times > 0 and (not of_weights.active, of_weights.step) < (not of_steps.active, of_steps.step)
    )
    return _of_weights(state.weights) if is_of_weights else _of_steps(state)


def _of_weights(weights: Weights) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity=replica_weights.severity(weights),
        title=replica_weights.title(weights),
        cause=replica_weights.cause(weights),
        fix=replica_weights.fix(weights),
        ranks=weights.differing,
        evidence=replica_weights.evidence(weights),
        **lifecycle_fields(weights.opened),
    )


def _of_steps(state: State) -> Finding:
    title, cause = wording.missing_steps(state) if state.ahead else wording.differing_scale(state)
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=title,
        cause=cause,
        fix=wording.fix(state),
        ranks=state.differing,
        evidence=wording.evidence(state),
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="ranks-disagree",
    severity="page",
    title="Ranks disagree",
    question="Do ranks of one model have different weights or loss scales, skip different steps, or stop alone?",
    columns=(
        *("scale", "growth_tracker", "skipped", "loss", "grad_norm"),
        *("weights_checksum", "weights_fingerprint", "reduced_share"),
    ),
    events=(),
    state=State,
    explains=(
        *("diverged", "nonfinite-loss", "nonfinite-gradient", "nonfinite-weights", "overflow-storm", "gradient-spike"),
        *("scale-collapse", "scale-underflowed"),
    ),
    ranks=judge,
)
