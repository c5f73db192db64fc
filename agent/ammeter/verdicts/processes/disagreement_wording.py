"""Title, cause and fix of a ranks-disagree finding on loss scales and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.rank_alignment import AHEAD_SECONDS
from ammeter.verdicts.processes.replica_weights import ranks_text

if TYPE_CHECKING:
    from ammeter.verdicts.processes.ranks_disagree import State


def missing_steps(state: State) -> tuple[str, str]:
    """Returns title and cause for a rank that completes no steps."""
    subject = wording.sentence(ranks_text(state.differing, state.differing_count))
    return f"{subject} stopped at step {state.opened.first} while other ranks continue", (
        f"{subject} has completed no step since step {state.opened.first}, while other ranks"
        f" continue: they are up to {wording.count(state.ahead, 'step')} and at least {AHEAD_SECONDS // 60} minutes"
        f" ahead. The {state.ranks} ranks shared their gradients before, so those that continue train another"
        " model."
    )


def differing_scale(state: State) -> tuple[str, str]:
    """Returns title and cause for ranks with another loss scale."""
    differing = ranks_text(state.differing, state.differing_count)
    verb = "has" if state.differing_count == 1 else "have"
    title = f"{wording.sentence(differing)} {verb} another loss scale than {_others(state)}"
    if state.lone_skip >= 0 and (skipping := _skipping(state, differing)):
        title = f"{wording.sentence(skipping[0])} skipped step {state.lone_skip} and {skipping[1]} applied it"
    return title, f"{_cause(state, differing)} The scaler of each rank decides independently: {_harm(state)}"


def evidence(state: State) -> dict[str, Any]:
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
    scales = f"{wording.scale(state.scale)} against {wording.scale(state.usual)} on {_others(state)}"
    if state.lone_skip < 0:
        when = "from the first compared step on" if not state.agreed else state.opened.since
        return f"The loss scale of {differing} differs from that of {_others(state)} {when}: {scales}."
    loss = ""
    if state.broken:
        ranks = f"rank {state.broken[0]}" if len(state.broken) == 1 else f"ranks {', '.join(map(str, state.broken))}"
        loss = f" In that step, the loss of {ranks} was not finite: examine that batch."
    skipping, applying = _skipping(state, differing) or ("some ranks", "others")
    return (
        f"Step {state.lone_skip} was skipped on {skipping} and applied on {applying}, and the loss scale of {differing}"
        f" has differed since then: {scales}.{loss}"
    )


def _others(state: State) -> str:
    """Names the other ranks: the one of two, else 'the other ranks'."""
    if state.ranks == 2 and state.differing_count == 1 and state.differing[0] in (0, 1):
        return f"rank {1 - state.differing[0]}"
    return "the other ranks"


def _skipping(state: State, differing: str) -> tuple[str, str] | None:
    """Returns who skipped the step and who applied it: a skip lowers the scale."""
    if not (state.scale > 0 and state.usual > 0) or state.scale == state.usual:
        return None
    return (differing, _others(state)) if state.scale < state.usual else (_others(state), differing)


def _harm(state: State) -> str:
    if state.lone_skip < 0:
        return "gradients with different scales are averaged, and one rank will skip steps that other ranks apply."
    if _is_of_parts(state):
        return "a step that is applied on some ranks and skipped on others does not update the whole model."
    return "a step that is applied on some ranks and skipped on others makes their weights differ from then on."


def _is_of_parts(state: State) -> bool:
    """Whether the ranks share all gradients, and each reads and unscales only those of its part."""
    return state.reduces and not state.has_equal_norms


def fix(state: State) -> str:
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
    sharded = (
        "use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler instead of torch.amp.GradScaler, which"
        " decides for all ranks together"
    )
    replicas = (
        "call the DistributedDataParallel wrapper instead of model.module, and do not change the gradients of a single"
        " rank after backward()"
    )
    if _is_of_parts(state):
        first = f"{wording.sentence(sharded)}."
    elif state.has_equal_norms and state.broken:  # averaging would have made the gradients of all ranks bad
        first = f"{wording.sentence(replicas)}: then all ranks skip the same steps."
    elif state.has_equal_norms:
        first = (
            "Find the code that changes the gradients of a single rank after backward(), such as a hook or a clipping"
            f" that runs on one rank, and remove it: before step {state.lone_skip} the gradients of all ranks were"
            " equal, so they are averaged as they should be."
        )
    else:
        first = f"With sharded weights, {sharded}. Otherwise {replicas}."
    return f"{first} Then load the same checkpoint from before step {max(1, state.lone_skip)} on all ranks."
