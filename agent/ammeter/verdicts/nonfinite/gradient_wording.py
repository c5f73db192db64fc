"""Title, cause and fix of a nonfinite-gradient finding."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.scale_limits import MIN_USEFUL_SCALE
from ammeter.verdicts.nonfinite.gradient_episode import PROOFS, OwnFunction, State

DERIVATIVES = {
    "Sqrt": ("the derivative of a square root is infinite at 0", "torch.sqrt(x + eps)"),
    "Norm": ("a norm has no derivative at 0", "torch.sqrt((x * x).sum(dim) + eps)"),
    "LinalgVectorNorm": ("a norm has no derivative at 0", "torch.sqrt((x * x).sum(dim) + eps)"),
    "Acos": ("the derivative of an arc cosine is infinite at 1 and -1", "torch.acos(x.clamp(eps - 1, 1 - eps))"),
    "Asin": ("the derivative of an arc sine is infinite at 1 and -1", "torch.asin(x.clamp(eps - 1, 1 - eps))"),
}
"""Operator -> why a finite result of it may have no finite derivative, and how to avoid that."""


def is_located(state: State) -> bool:
    """Whether the graph shows the operator, in a module: more exact than the frontier of the gradients."""
    return bool(state.origin.is_first and state.origin.module and state.origin.operator)


def module_before(state: State) -> str:
    """Returns the module with weights that comes before the located operator, inside the located module, or ''.

    The gradients of its weights and of all weights before it are non-finite, and those after it are finite.
    """
    name = state.frontier.module
    return name if _is_in_order(state) and name and name.startswith(f"{state.origin.module}.") else ""


def _is_in_order(state: State) -> bool:
    """Whether the gradients agree with a model that runs its modules in the order in which it lists them."""
    return state.frontier.handed_on and not state.frontier.before


def title(state: State) -> str:
    if is_located(state):
        inside = module_before(state).removeprefix(f"{state.origin.module}.")
        after = f", after {inside}," if inside else ""
        return f"The backward pass of {state.origin.operator} in {state.origin.module}{after} makes NaN or Inf"
    where = f" at {state.frontier.module}" if state.frontier.module else ""
    return f"Non-finite gradients{where}{'' if state.loss_unread else ' with a finite loss'}"


def cause(state: State) -> str:
    loss = "; the loss was not read" if state.loss_unread else " although the loss was finite"
    if is_located(state) and not came_later(state):
        return f"{_steps(state)} the gradients contained NaN or Inf{loss}.{state.origin.words()}{_effect(state)}"
    return (
        f"{_steps(state)} the gradients contained NaN or Inf{loss}."
        f"{state.frontier.words()}{_place(state)}{_effect(state)}"
    )


def fix(state: State) -> str:
    place = state.origin if state.origin.kind else state.frontier
    where = f"{place.module} and the operations directly after it" if place.module else "the loss and the last layers"
    check = (
        f"Check the backward pass of {where}: a square root, norm or division of a value that can be zero (add an eps"
        " inside), log, exp, or a custom autograd.Function. Clamp its input, or run it in float32 with"
        " torch.autocast(..., enabled=False)."
    )
    if state.origin.trial == "undefined" and state.origin.operator in DERIVATIVES:
        check = _derivative(state)
    elif state.origin.trial:
        check = state.origin.fix()
    elif state.functions and not state.origin.kind:
        names = wording.listed([f"{function.name}.backward(){_at(function)}" for function in state.functions])
        check = (
            f"Check {names} first: memory that it does not write, a division by zero, a kernel. Return zeros for what"
            f" has no gradient, and compare it with torch.autograd.gradcheck. Then check the backward pass of {where}."
        )
    if came_later(state):
        check = (
            "See what the other ranks report: one may have computed the NaN or Inf. If not, check what changes the"
            " gradients between backward() and the optimizer's step: a buffer that is used again before the result of"
            " its reduction is copied back (turn off the overlap of communication and computation for a trial), a"
            " division, or a clip."
        )
    return check


def _derivative(state: State) -> str:
    """Returns what to do about an operator whose derivative is not finite at some inputs."""
    origin = state.origin
    place = f"at {origin.line}" if origin.line else f"in {origin.place}"
    why, instead = DERIVATIVES[origin.operator]
    shown = f" {origin.reproducer} in the run's folder shows it without the training." if origin.reproducer else ""
    return (
        f"For {origin.operator} {place}, compute {instead} with an eps such as 1e-6: {why}. A torch.where after it does"
        f" not help, because zero times Inf is NaN.{shown}"
    )


def came_later(state: State) -> bool:
    """Whether the gradients of this rank were finite before their reduction in a bad step of the finding."""
    return 0 <= state.opened.first <= state.finite_before and not state.origin.kind


def trial_evidence(state: State) -> dict[str, Any]:
    """Returns what is known of an operator whose backward pass ran again."""
    origin = state.origin
    return {"op": origin.op, **origin.trial_evidence()} if origin.trial else {}


def _steps(state: State) -> str:
    if state.bad == 1:
        return f"At step {state.opened.last}"
    return f"In {state.bad} steps from {state.opened.first} to {state.opened.last}"


def _place(state: State) -> str:
    """Describes the origin by the graph or by hooks, by readings before the reduction, else by the gradients."""
    if came_later(state):
        return (
            f" At step {state.finite_before} the gradients of this rank were finite before their reduction: the NaN or"
            " Inf came with those of another rank, in the reduction, or between it and the optimizer's step."
        )
    if state.origin.is_first:
        return state.origin.words()
    if state.origin.kind and not state.loss_unread:
        most = f" of at most {state.origin.absmax:.4g}" if state.origin.absmax >= 0 else ""
        return (
            f" Hooks read finite gradients{most} at the input of {state.origin.module}'s backward pass and NaN or Inf"
            " at its output: they originated in the backward pass there."
        )
    if state.functions:
        names = wording.listed([f"{function.name}{_at(function)}" for function in state.functions])
        which = "this autograd.Function" if len(state.functions) == 1 else "these autograd.Functions"
        return (
            f" Between the finite and the non-finite gradients, the graph of the next loss has {which} of the program:"
            f" {names}."
        )
    if _is_in_order(state):
        return f" That points to the backward pass of {state.frontier.module}."
    return ""


def _at(function: OwnFunction) -> str:
    return f" at {function.line}" if function.line else ""


def _effect(state: State) -> str:
    if state.ended:
        return f" The program ended in this step{state.ended}. The optimizer did not step, so no weight was changed."
    if state.applied:
        return _applied(state)
    if not state.scale > 0:
        if state.step_unknown:
            return " Whether the optimizer stepped is unknown."
        return " The optimizer did not step, so no weight was changed."
    skipped = "that step" if state.bad == 1 else "those steps"
    scaler = "The program" if state.own_scaled else "GradScaler"
    if state.partly_applied:
        return f"{_overflow(state)} {scaler} skipped {skipped} for one optimizer, and another one stepped."
    return f"{_overflow(state)} {scaler} skipped {skipped}, so no weight was changed."


def _applied(state: State) -> str:
    were, them = ("was", "it") if state.applied == 1 else ("were", "them")
    scaler = "" if state.scaled else f" without a GradScaler that would have skipped {them}"
    steps = f" {wording.count(state.applied, 'such step')} {were} applied{scaler}"
    if state.weight:
        return f"{steps}, and the weights contain NaN or Inf since then, {state.weight} among them."
    return f"{steps}; no reading has found NaN or Inf in the weights since."


def _overflow(state: State) -> str:
    """Describes the evidence against an overflow, and the missing evidence."""
    if state.origin.trial in PROOFS:
        return ""
    if state.several:
        return (
            " An overflow is possible, because it was not compared with the scale of the scaler that skipped: run the"
            " same batch with GradScaler(init_scale=1) to decide."
        )
    if state.lowest <= MIN_USEFUL_SCALE:
        scale = "this rank's loss scale" if state.of_ranks else "the loss scale"
        return f" It is not an overflow of {scale}: a step failed at a scale of {wording.scale(state.lowest)}."
    bits = round(state.headroom_bits)
    worked = state.worked or state.scale
    known = [f"the scale of {wording.scale(worked)} had worked"]
    if state.headroom_bits >= 1:
        there = "there" if worked == state.scale else f"at {wording.scale(state.scale)}"
        known.append(f"usual gradients left {wording.count(bits, 'bit')} of headroom {there} (a factor of {2**bits})")
    if not state.frontier.inf:
        known.append("none of the gradients is Inf")
    many = f" The last of these steps had a scale of {wording.scale(state.lowest)}." if state.bad > 1 else ""
    known_size = f"a sample with gradients {2**bits} times the usual ones would"
    sample = known_size if state.headroom_bits >= 1 else "an unusual sample could"
    return (
        f"{many} An overflow is unlikely, because {wording.listed(known)}, but {sample} cause it: run the same batch"
        f" with {'a loss scale of 1' if state.own_scaled else 'GradScaler(init_scale=1)'} to decide."
    )
