"""unsupported-op: an operator raised because it does not support its input dtypes, or their combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

METHODS = {"forward", "backward"}
"""Names of the function around the line. The event contains such a name as the operator if the line calls nothing, as
in `x @ weight`."""


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller, module = (str(data.get(name) or "") or None for name in ("caller", "module"))
    title, cause, fix = _PROBLEMS.get(str(data.get("problem") or ""), _rejected)(data)
    names = ("op", "dtypes", "backward", "message", *(["problem"] if data.get("problem") else []))
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause=cause,
        fix=fix,
        module=module,
        caller=caller,
        evidence={name: data.get(name) for name in names},
        **lifecycle_fields(state.opened),
    )


def _rejected(data: dict[str, Any]) -> Words:
    given = _list(data)
    reason = " together" if len(given) > 1 else ", for which it has no kernel"
    message = _message(data)
    at = f" at {data['caller']}" if data.get("caller") else ""
    return (
        f"{_op(data) or 'An operator'} does not support {' with '.join(given)}",
        f"{_subject(data)} raised in the {_pass(data)} pass because its inputs were {' and '.join(given)}"
        f"{reason}{f': {message}' if message else ''}.",
        _fix(given, at, backward=bool(data.get("backward")), of_criterion=message.startswith("Found dtype")),
    )


def _too_large(data: dict[str, Any]) -> Words:
    (dtype,) = _list(data)[:1]
    largest = {"float16": "65504", "bfloat16": "3.39e38"}.get(dtype)
    return (
        f"A number in the program is too large for {dtype}",
        f"An operator{_place(data)} raised in the {_pass(data)} pass because it was given a number beyond the largest"
        f" {dtype}{f', {largest}' if largest else ''}: {_message(data)}. Masks of -1e9 and similar constants are"
        " written for float32, and under autocast the scores are in half precision.",
        "Use the smallest number of the tensor's dtype, scores.masked_fill(mask, torch.finfo(scores.dtype).min), or"
        " float('-inf') if no row is masked completely; or convert before the mask, scores.float().masked_fill(mask,"
        " -1e9).",
    )


def _recomputed(data: dict[str, Any]) -> Words:
    saved, recomputed = [*_list(data), *_list(data)][:2]
    line = f" {data['caller']} called backward()." if data.get("caller") else ""
    return (
        "Checkpointing recomputes in another dtype",
        f"torch.utils.checkpoint computed a tensor in {saved} in the forward pass and in {recomputed} when it ran the"
        f" same part again for backward(), as with autocast in another state, and raised.{line}",
        "Enter autocast outside of checkpoint(), once for the whole forward pass, and not inside of the function under"
        " it depending on a flag or on the grad mode: checkpoint() restores the autocast that is on where it is called."
        " If the function enters autocast itself, use cache_enabled=False there, so that no cached weight replaces a"
        " cast.",
    )


Words = tuple[str, str, str]
"""Title, cause and fix."""

_PROBLEMS: dict[str, Callable[[dict[str, Any]], Words]] = {"overflow": _too_large, "recomputed": _recomputed}


def _place(data: dict[str, Any]) -> str:
    op = str(data.get("op") or "")
    called = f", where {op} is called," if op and op not in METHODS else ""
    known = (f" {word} {data[name]}" for word, name in (("in", "module"), ("at", "caller")) if data.get(name))
    return f"{''.join(known)}{called}"


def _op(data: dict[str, Any]) -> str:
    """Returns the operator's name; empty if only the function around it is known."""
    op = str(data.get("op") or "")
    return "" if op in METHODS else op


def _subject(data: dict[str, Any]) -> str:
    if not _op(data):
        return f"An operator{_place(data)}"
    known = (f" {word} {data[name]}" for word, name in (("in", "module"), ("at", "caller")) if data.get(name))
    return f"{_op(data)}{''.join(known)}"


def _pass(data: dict[str, Any]) -> str:
    return "backward" if data.get("backward") else "forward"


def _message(data: dict[str, Any]) -> str:
    return " ".join(str(data.get("message") or "").split()).rstrip(".")


def _list(data: dict[str, Any]) -> list[str]:
    return [str(dtype) for dtype in data.get("dtypes") or ()] or ["this dtype"]


def _fix(given: list[str], at: str, *, backward: bool, of_criterion: bool) -> str:
    custom = (
        "a custom torch.autograd.Function needs @torch.amp.custom_fwd(device_type=..., cast_inputs=torch.float32)"
        " on its forward and @torch.amp.custom_bwd(device_type=...) on its backward"
    )
    if backward and of_criterion:
        return (
            "Give the loss function its output and its target in one dtype, such as criterion(output.float(), target):"
            " the gradient of a loss of mixed dtypes has no kernel."
        )
    if backward:
        return (
            f"Backward runs outside autocast, so {custom}, or must cast its gradient to the dtype of its saved"
            f" tensors{at}."
        )
    if len(given) > 1:
        return f"Cast the inputs{at} to one dtype, such as x.to(weight.dtype). {wording.sentence(custom)}."
    return (
        f"Run the operator{at} in float32: inside with torch.autocast(device_type, enabled=False), with .float() on its"
        f" inputs; {custom}."
    )


VERDICT = Verdict(
    id="unsupported-op",
    severity="ticket",
    title="Unsupported operator",
    question="Did an operator raise because of the dtypes of its inputs?",
    columns=(),
    events=("usage.unsupported_op",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.unsupported_op", _conclude),
)
