"""ranks-disagree: ranks of one model have different loss scales, or one of them has stopped."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.rank_alignment import AHEAD_SECONDS, AlignedSteps, Standing
from ammeter.wire.columns import Mask, measured

HELD = 3
"""Steps in a row with different scales, for ranks that had agreed before. They agree if scale and number of good steps
since its last change are equal: scalers with the same inputs agree in every step."""

HELD_UNMET = 20
"""The same for ranks that have never agreed. watch() may have been called some steps later on one of them; each skip
then makes them differ for that many steps, and no longer."""

SAME_NORM = 1e-4
"""Relative difference below which the norm of all gradients is the same on two ranks. The results of an all-reduce are
equal to the bit, and other kernels sum them up with 1e-6. Ranks that train independently differ by percents."""

AHEAD_STEPS = 100
"""Steps by which the others are ahead of a stopped rank, in addition to AHEAD_SECONDS: so many prove that they do not
wait for it."""

NAMED = 8
"""Maximum number of ranks in the text; a list of hundreds is useless."""

RECENT = 5
"""Maximum steps between a lone skip and the first different scale that it explains."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    reached: int = -1
    """The last step that was compared."""
    coupled: bool = False
    """Whether the ranks were seen to share gradients. Ranks that train separate models may differ."""
    agreed: bool = False
    held: int = 0
    since: int = -1
    lone: int = -1
    """`lone`: last step that only some ranks skipped. `broken`: the ranks whose loss was not finite there."""
    broken: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()
    """The differing ranks. `odd` has the first NAMED of `odd_count`, among `ranks` ranks."""
    odd_count: int = 0
    ranks: int = 0
    scale: float = 0.0
    usual: float = 0.0
    """`scale`: scale of the first differing rank. `usual`: scale of the others."""
    ahead: int = 0
    """Steps by which the others are ahead of a stopped rank."""


def judge(state: State, seen: AlignedSteps) -> tuple[State, Finding | None]:
    before = state
    if len(seen):
        state = _steps(state, seen)
    if seen.standings and state.coupled and not state.opened.active:
        state = _stands(state, seen.standings)
    return state, changed(_conclude, before, state)


def _steps(state: State, seen: AlignedSteps) -> State:
    scales, skipped = seen.column("scale"), seen.column("skipped") > 0
    apart = measured(scales).all(axis=0) & (scales.max(axis=0) != scales.min(axis=0))
    lone = measured(seen.column("skipped")).all(axis=0) & (skipped.any(axis=0) != skipped.all(axis=0))
    state = replace(state, coupled=state.coupled or seen.sharded or _share_gradients(seen))
    met = _agree(seen) & ~apart
    begin = 0 if state.held else _first(apart | lone, len(seen))
    state = replace(state, agreed=state.agreed or bool(met[:begin].any()))
    for at in range(begin, len(seen)):
        state = _step(state, seen, at, bool(apart[at]), bool(lone[at]))
        state = replace(state, agreed=True) if met[at] and not state.agreed else state
    return replace(state, reached=int(seen.steps[-1]))


def _step(state: State, seen: AlignedSteps, at: int, apart: bool, lone: bool) -> State:
    step = int(seen.steps[at])
    if lone and not state.opened.active:
        losses = seen.column("loss")[:, at]
        bad = np.flatnonzero(measured(losses) & ~np.isfinite(losses)).tolist()
        state = replace(state, lone=step, broken=tuple(seen.ranks[each] for each in bad)[:NAMED])
    if not apart:
        return replace(state, held=0) if state.held else state
    if state.opened.active:
        return replace(state, opened=state.opened.until(step), held=1)
    explained = 0 <= step - state.lone <= RECENT and state.lone >= 0
    since = state.since if state.held else state.lone if explained else step
    state = replace(state, held=state.held + 1, since=since)
    if state.held < (HELD if state.agreed else HELD_UNMET) or not state.coupled:
        return state
    return _differ(state, seen.ranks, seen.column("scale")[:, at].tolist(), step)


def _differ(state: State, ranks: Sequence[int], scales: Sequence[float], step: int) -> State:
    """Selects the ranks whose scale is not that of the majority.

    If there is no majority, the ranks with the lower scale are selected, because they skipped.
    """
    usual = max(sorted(set(scales)), key=lambda scale: (scales.count(scale), scale))
    odd = [rank for rank, scale in zip(ranks, scales, strict=True) if scale != usual]
    return replace(
        state,
        opened=state.opened.at(state.since, step),
        odd=tuple(odd[:NAMED]),
        odd_count=len(odd),
        ranks=len(ranks),
        scale=scales[ranks.index(odd[0])],
        usual=usual,
        lone=state.lone if state.since == state.lone else -1,
    )


def _stands(state: State, standings: Sequence[Standing]) -> State:
    last = min(standings, key=lambda each: (not each.stands, each.step))
    ahead = [
        each
        for each in standings
        if each.step - last.step >= AHEAD_STEPS and each.time - last.time >= AHEAD_SECONDS * 10**9
    ]
    if not last.stands or not ahead:
        return state
    furthest = max(each.step for each in ahead)
    return replace(
        state,
        opened=state.opened.at(last.step, furthest),
        odd=(last.rank,),
        odd_count=1,
        ranks=len(standings),
        ahead=furthest - last.step,
    )


def _share_gradients(seen: AlignedSteps) -> bool:
    """Whether the norm of all scaled gradients is equal on all ranks at some step."""
    scales = seen.column("scale").astype(np.float64)
    norms = seen.column("grad_norm").astype(np.float64) * np.where(np.isnan(scales), 1.0, scales)
    with np.errstate(invalid="ignore"):
        low, high = norms.min(axis=0), norms.max(axis=0)
        return bool((np.isfinite(high) & (low > 0) & (high - low <= SAME_NORM * high)).any())


def _agree(seen: AlignedSteps) -> Mask:
    """Selects steps at which all scalers have the same scale and growth tracker."""
    columns = [seen.column(name) for name in ("scale", "growth_tracker")]
    scales, trackers = (measured(each).all(axis=0) & (each.max(axis=0) == each.min(axis=0)) for each in columns)
    found: Mask = scales & trackers
    return found


def _first(where: Mask, otherwise: int) -> int:
    found = np.flatnonzero(where)
    return int(found[0]) if found.size else otherwise


def _conclude(state: State) -> Finding:
    who = _who(state)
    if state.ahead:
        title = f"{who.capitalize()} stands at step {state.opened.first} while the others go on"
        cause = (
            f"{who.capitalize()} is alive and has made no step since step {state.opened.first}; the others of the"
            f" {state.ranks} are {wording.count(state.ahead, 'step')} ahead, {AHEAD_SECONDS // 60} minutes and more."
            " They had shared their gradients before, so what they train on without it is another model."
        )
    else:
        title = f"{who.capitalize()} {'holds' if state.odd_count == 1 else 'hold'} another loss scale than the rest"
        cause = f"{_cause(state, who)} Each of these scalers decides by itself: {_harm(state)}"
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=title,
        cause=cause,
        fix=_fix(state),
        ranks=state.odd,
        evidence={
            "ranks": list(state.odd),
            "of": state.ranks,
            "scale": state.scale or None,
            "scale_of_the_others": state.usual or None,
            "skipped_alone": state.lone if state.lone >= 0 else None,
            "first_nonfinite_loss": list(state.broken) if state.lone >= 0 else [],
            "steps_behind": state.ahead,
        },
        **lifecycle_fields(state.opened),
    )


def _who(state: State) -> str:
    if state.odd_count == 1:
        return f"rank {state.odd[0]}"
    named = ", ".join(str(rank) for rank in state.odd)
    more = f" and {state.odd_count - len(state.odd)} more" if state.odd_count > len(state.odd) else ""
    return f"ranks {named}{more}"


def _cause(state: State, who: str) -> str:
    scales = f"{wording.scale(state.scale)} against {wording.scale(state.usual)} on the other ranks"
    if state.lone < 0:
        when = "from the first step on that was compared" if not state.agreed else state.opened.since
        return f"The loss scale of {who} differs from that of the others {when}: {scales}."
    loss = ""
    if state.broken:
        ranks = f"rank {state.broken[0]}" if len(state.broken) == 1 else f"ranks {', '.join(map(str, state.broken))}"
        loss = f" The loss of {ranks} was not finite in that step: look there."
    return (
        f"Step {state.lone} was skipped on some ranks and applied on others, and since then the loss scale of {who} is"
        f" another one: {scales}.{loss}"
    )


def _harm(state: State) -> str:
    if state.lone < 0:
        return "gradients that were scaled differently are averaged, and one rank will skip steps that others apply."
    return "a step that is applied on some ranks and not on others makes their weights part, and they stay apart."


def _fix(state: State) -> str:
    if state.ahead:
        return (
            f"See where it stands: `py-spy dump` of the process of rank {state.odd[0]} on its host. Then end the run"
            f" and resume it on all ranks from a checkpoint of step {state.opened.first} or before: the weights of the"
            " others have gone on without it."
        )
    if state.lone < 0:
        return (
            "Load the same state into the scaler of every rank: torch.load and scaler.load_state_dict belong on all"
            " ranks, not only on rank 0, and GradScaler gets the same init_scale everywhere. Then start again."
        )
    return (
        "Let one decision hold for all ranks. With sharded weights use"
        " torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler in place of torch.amp.GradScaler; with"
        " DistributedDataParallel call the wrapper, not model.module, and change no gradient of a single rank behind"
        f" backward(). Then restore a checkpoint from before step {max(1, state.lone)} on all ranks, for their weights"
        " are no longer the same."
    )


VERDICT = Verdict(
    id="ranks-disagree",
    severity="page",
    title="Ranks disagree",
    question="Do ranks of one model hold other loss scales, skip alone, or stand while others go on?",
    columns=("scale", "growth_tracker", "skipped", "loss", "grad_norm"),
    events=(),
    state=State,
    explains=("nonfinite-gradient", "overflow-storm", "gradient-spike"),
    ranks=judge,
)
