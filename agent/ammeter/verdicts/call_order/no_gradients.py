"""no-gradients: an optimizer steps, but its parameters have no gradient."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict, module_of
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.model_shape import OPTIMIZER_TENSOR
from ammeter.verdicts.framework.single_event import truncated
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import Event

MIN_ZERO_READINGS = 20
"""Readings in a row, from the start of the run, of gradients that are exactly zero. Weights that start at zero give
zero gradients to a part of a model for one step, and a batch without a target gives them to all of it."""

MIN_FLOAT16_SCALE = 256.0
"""Loss scale from which the gradients of a usual loss do not all underflow in float16: those of its last layer are
about 1e-4 or more, a thousand times its smallest number."""


class State(msgspec.Struct, frozen=True, array_like=True):
    """The state of no-gradients.

    Attributes:
        data: Data of the event that opened the verdict.
        zeros: Readings so far, all of them zero; -1 after another one.
        float16: Whether the run computes in float16.
        first: Step of the earliest of these.
        loss: The loss at the last of these.
    """

    opened: Lifecycle = Lifecycle()
    data: dict[str, Any] = {}
    zeros: int = 0
    first: int = -1
    loss: float = 0.0
    column: str = ""
    float16: bool = False


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts(*VERDICT.events):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Event):
            state = _event(state, part)
    return state, changed(_conclude, before, state)


def _event(state: State, event: Event) -> State:
    if event.name == "autocast.entered":
        return replace(state, float16=True) if event.data.get("dtype") == "float16" else state
    if state.opened.active:
        return state
    first = event.data.get("first_step", event.step)
    first = first if isinstance(first, int) and 0 <= first <= event.step else event.step
    data = {name: truncated(value) for name, value in event.data.items()}
    return replace(state, opened=state.opened.at(first, event.step), data=data)


def _rows(state: State, rows: View) -> State:
    if state.zeros < 0 or state.opened.active:
        return state
    norms = rows.scalar("grad_norm")
    read = measured(norms) & (rows.scalar("applied") > 0)
    if state.float16:  # without a scale, gradients may underflow, which is another verdict's
        read &= rows.scalar("scale") >= MIN_FLOAT16_SCALE
    if not read.any():
        return state
    for at, (step, (loss, norm)) in enumerate(rows.records("loss", "grad_norm")):
        if not read[at]:
            continue
        if norm != 0:
            return replace(state, zeros=-1)
        if not math.isfinite(loss) or loss == 0:  # a loss of zero has no gradient
            continue
        first = step if state.first < 0 else state.first
        state = replace(state, zeros=state.zeros + 1, first=first, loss=loss, column=rows.loss_at(at))
        if state.zeros >= MIN_ZERO_READINGS:
            return replace(state, opened=state.opened.at(first, step))
    return state


def _conclude(state: State) -> Finding:
    data = state.data
    caller = str(data.get("caller") or "") or None
    tensors = [str(name) for name in data.get("tensors") or ()]
    named = [name for name in tensors if not OPTIMIZER_TENSOR.fullmatch(name)]
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(data),
        cause=_cause(state, caller, named),
        fix=_fix(str(data.get("reason", "zero") if data else "zero"), caller),
        tensor=named[0] if named else None,
        module=module_of(named[0]) if named else None,
        caller=caller,
        evidence=_evidence(state, tensors),
        **lifecycle_fields(state.opened),
    )


def _title(data: dict[str, Any]) -> str:
    optimizer = data.get("optimizer") or "The optimizer"
    if not data:
        return "All gradients are zero"
    if data.get("reason") == "dropped":
        return f"{data.get('function') or 'A custom Function'} returns no gradient for a parameter"
    if data.get("reason") == "other-parameters":
        return f"{optimizer} has parameters that are not the model's, so the model is not trained"
    if data.get("reason") == "replaced":
        return f"{optimizer} has parameters that are not the model's"
    return f"{optimizer} steps without gradients"


def _cause(state: State, caller: str | None, tensors: list[str]) -> str:
    data = state.data
    if not data:
        return (
            f"Every gradient that was read since step {state.opened.first} is exactly zero, in"
            f" {wording.count(state.zeros, 'reading')}, although the loss{wording.of_loss(state.column)} is"
            f" {state.loss:.4g}: the steps do not train."
        )
    optimizer, count = data.get("optimizer") or "the optimizer", int(data.get("count") or 0)
    many = f" of the {wording.count(count, 'trainable tensor')}" if count else ""
    raises = (
        " GradScaler then raises 'No inf checks were recorded for this optimizer'."
        if data.get("raises") and data.get("reason") not in ("no-graph", "no-graph-of-output")
        else ""
    )
    named = f" ({', '.join(tensors)})" if tensors else ""
    return (
        wording.sentence(
            _CAUSES.get(str(data.get("reason")), _CAUSES[""]).format(
                optimizer=optimizer,
                many=many,
                named=named,
                at=f" at {caller}" if caller else "",
                count=wording.count(count, "parameter"),
                function=data.get("function") or "a custom Function",
            )
        )
        + raises
    )


_CAUSES = {
    "other-parameters": "{optimizer} steps parameters that are not those of the trained model{named}, and none{many}"
    " has a gradient: the model was created again, copied or converted after the optimizer.",
    "replaced": "parts of the model were replaced after {optimizer} was created: the new ones{named} have gradients and"
    " belong to no optimizer of the run, and tensors of the optimizer are no longer the model's and have no gradient.",
    "dropped": "{count} of {optimizer}{named}, of which the loss is computed, had no gradient after backward():"
    " {function}, an autograd.Function of the program, gets them and its backward(){at} returned None for them."
    " Other parameters of the optimizer had gradients.",
    "frozen": "none of the parameters of {optimizer}{named} requires a gradient, so its steps skip all of them.",
    "no-graph-of-output": "the forward pass{at} recorded no graph, so none{many} of {optimizer} can get a"
    " gradient: it ran under torch.no_grad() or inference_mode(), or its parameters do not require gradients.",
    "no-graph": "backward(){at} was called on a loss without a graph: the loss does not depend on a parameter that"
    " requires gradients.",
    "cut": "the loss of backward(){at} does not depend on the model's output, so none{many} of {optimizer} has a"
    " gradient: a detach(), item(), .data or no_grad() lies between them.",
    "unused": "the loss of backward(){at} depends on other parameters of the model than those of {optimizer}, so none"
    "{many} has a gradient.",
    "reset": "the loss depends on the parameters of {optimizer}, but none{many} has a gradient when it steps: they are"
    " reset between backward() and step().",
    "not-now": "{optimizer} steps{at} although none of its parameters has a gradient in this iteration. It had"
    " gradients in earlier ones, and other optimizers have some now.",
    "": "{optimizer} steps{at} although none{many} has a gradient.",
}
"""Reason of the event -> the cause."""


def _fix(reason: str, caller: str | None) -> str:
    at = f" at {caller}" if caller else ""
    return _FIXES.get(reason, _FIXES[""]).format(at=at)


_FIXES = {
    "other-parameters": "Create the optimizer from model.parameters() after the last step that builds, copies, wraps or"
    " converts the model, and pass that model to ammeter.watch(). Start the run again: it has trained nothing.",
    "replaced": "Create the optimizer after the parts are replaced, or call optimizer.add_param_group() with the new"
    " ones.",
    "dropped": "Return a gradient for each input of the Function that ctx.needs_input_grad asks for. forward() of a"
    " Function runs without gradients: a copy that it makes of a weight, such as a cast, has requires_grad=False, so"
    " decide by the weight itself or by ctx.needs_input_grad. Start the run again: these parameters were not trained.",
    "frozen": "Call requires_grad_(True) on the parameters to train before the forward pass.",
    "no-graph-of-output": "Run the forward pass{at} outside of torch.no_grad() and torch.inference_mode(), after"
    " model.train() and requires_grad_(True) on the parameters to train.",
    "no-graph": "Compute the loss{at} from the output of the model, without detach(), item(), .data, numpy() or"
    " argmax() between them.",
    "cut": "Compute the loss of backward(){at} from the output of the model, without detach(), item(), .data, numpy()"
    " or argmax() between them. requires_grad_() on a detached loss hides the error and does not restore the graph.",
    "unused": "Give the optimizer the parameters that the loss{at} trains, or step it only with a loss of its own.",
    "reset": "Call zero_grad() before backward() or after step(), not between them.",
    "zero": "Find the factor that makes the gradients zero: a weight or a mask of the loss, labels that are all"
    " ignored, weights that are all zero, or activations in a flat part. Print the gradient of the last layer and go"
    " back from there.",
    "not-now": "Call scaler.step(optimizer) only in an iteration in which one of its parameters has a gradient, and"
    " scaler.update() in every one.",
    "": "Check that the optimizer was created from the parameters of the model that computes the loss, and that nothing"
    " cuts the graph between them: detach(), no_grad(), requires_grad=False.",
}
"""Reason of the event, or `zero` -> the fix."""


def _evidence(state: State, tensors: list[str]) -> dict[str, Any]:
    data = state.data
    if not data:
        return {"zero_readings": state.zeros, "loss": state.loss}
    return {
        "optimizer": data.get("optimizer") or None,
        "reason": data.get("reason") or None,
        "tensors_without_gradient": data.get("count") or None,
        "tensors": tensors,
        "raises": bool(data.get("raises")),
        **({"function": data["function"]} if data.get("function") else {}),
    }


VERDICT = Verdict(
    id="no-gradients",
    severity="ticket",
    title="No gradients",
    question="Does an optimizer step parameters that get no gradient from the loss?",
    columns=("grad_norm", "applied", "loss", "loss_backward", "scale"),
    events=("usage.no_gradients", "autocast.entered"),
    state=State,
    judge=judge,
    explains=("gradient-spike", "gradient-underflow", "lost-updates", "stagnation"),
)
