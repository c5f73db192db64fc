"""ranks-disagree: ranks of one model have different weights or loss scales, or one of them has stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, lifecycle_fields
from ammeter.verdicts.framework.rank_alignment import AHEAD_SECONDS, AlignedSteps, Standing
from ammeter.verdicts.processes import replica_weights
from ammeter.verdicts.processes.replica_weights import MAX_LISTED_RANKS, Weights, ranks_text
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
    is_shared = aligned.sharded | (apart < MIN_STEPS_APART)
    different = measured(scales).all(axis=0) & (scales.max(axis=0) != scales.min(axis=0))
    lone_skip = measured(aligned.column("skipped")).all(axis=0) & (skipped.any(axis=0) != skipped.all(axis=0))
    has_equal_norms = bool(replica_weights.norms_of(aligned).are_equal.any())
    state = replace(state, coupled=state.coupled or aligned.sharded or has_equal_norms)
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
    if lone_skip and not state.opened.active:
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
    title, cause = _missing_steps(state) if state.ahead else _differing_scale(state)
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=title,
        cause=cause,
        fix=_fix(state),
        ranks=state.differing,
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _missing_steps(state: State) -> tuple[str, str]:
    """Returns title and cause for a rank that completes no steps."""
    subject = wording.sentence(ranks_text(state.differing, state.differing_count))
    return f"{subject} stopped at step {state.opened.first} while other ranks continue", (
        f"{subject} has completed no step since step {state.opened.first}, while other ranks"
        f" continue: they are up to {wording.count(state.ahead, 'step')} and at least {AHEAD_SECONDS // 60} minutes"
        f" ahead. The {state.ranks} ranks shared their gradients before, so those that continue train another"
        " model."
    )


def _differing_scale(state: State) -> tuple[str, str]:
    """Returns title and cause for ranks with another loss scale."""
    differing = ranks_text(state.differing, state.differing_count)
    verb = "has" if state.differing_count == 1 else "have"
    title = f"{wording.sentence(differing)} {verb} another loss scale than the other ranks"
    return title, f"{_cause(state, differing)} The scaler of each rank decides independently: {_harm(state)}"


def _evidence(state: State) -> dict[str, Any]:
    return {
        "ranks": list(state.differing),
        "of": state.ranks,
        "scale": state.scale or None,
        "scale_of_the_others": state.usual or None,
        "skipped_alone": state.lone_skip if state.lone_skip >= 0 else None,
        "first_nonfinite_loss": list(state.broken) if state.lone_skip >= 0 else [],
        "steps_behind": state.ahead,
    }


def _cause(state: State, differing: str) -> str:
    scales = f"{wording.scale(state.scale)} against {wording.scale(state.usual)} on the other ranks"
    if state.lone_skip < 0:
        when = "from the first compared step on" if not state.agreed else state.opened.since
        return f"The loss scale of {differing} differs from that of the other ranks {when}: {scales}."
    loss = ""
    if state.broken:
        ranks = f"rank {state.broken[0]}" if len(state.broken) == 1 else f"ranks {', '.join(map(str, state.broken))}"
        loss = f" In that step, the loss of {ranks} was not finite: examine that batch."
    return (
        f"Step {state.lone_skip} was skipped on some ranks and applied on others, and the loss scale of {differing}"
        f" has differed since then: {scales}.{loss}"
    )


def _harm(state: State) -> str:
    if state.lone_skip < 0:
        return "gradients with different scales are averaged, and one rank will skip steps that other ranks apply."
    return "a step that is applied on some ranks and skipped on others makes their weights differ from then on."


def _fix(state: State) -> str:
    if state.ahead:
        return (
            f"Run `py-spy dump --pid PID` for the process of rank {state.differing[0]} on its host to see where it"
            f" waits. Then stop the run, and resume all ranks from a checkpoint of step {state.opened.first} or"
            " earlier: the weights of the other ranks have changed since."
        )
    if state.lone_skip < 0:
        return (
            "Load the same scaler state on every rank: call torch.load and scaler.load_state_dict on all ranks, not"
            " only on rank 0, and give every GradScaler the same init_scale. Then start the run again."
        )
    return (
        "Use a scaler that decides for all ranks together. With sharded weights, use"
        " torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler instead of torch.amp.GradScaler. With"
        " DistributedDataParallel, call the wrapper instead of model.module, and do not change the gradients of a"
        f" single rank after backward(). Then restore a checkpoint from before step {max(1, state.lone_skip)} on all"
        " ranks, because their weights differ."
    )


VERDICT = Verdict(
    id="ranks-disagree",
    severity="page",
    title="Ranks disagree",
    question="Do ranks of one model have different weights or loss scales, skip different steps, or stop alone?",
    columns=("scale", "growth_tracker", "skipped", "loss", "grad_norm", "weights_checksum"),
    events=(),
    state=State,
    explains=("diverged", "nonfinite-gradient", "overflow-storm", "gradient-spike"),
    ranks=judge,
)
