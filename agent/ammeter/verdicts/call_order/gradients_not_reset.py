"""gradients-not-reset: gradients of one step are added to the next one, and a NaN remains permanently."""

from __future__ import annotations

import math
from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    left = _number(data, "left")
    permanent = left is not None and not math.isfinite(left)
    return Finding(
        verdict=VERDICT.id,
        severity="page" if permanent else "ticket",
        title=_title(data) if permanent else "Gradients are not reset",
        cause=_nonfinite(data) if permanent else _added(data, left, _number(data, "scale")),
        fix=_fix(data),
        caller=data.get("caller") or None,
        evidence=_evidence(data, left),
        **lifecycle_fields(state.opened),
    )


def _title(data: dict[str, Any]) -> str:
    if data.get("after") == "skipped":
        return "Gradients are not reset after a skipped step, so NaN or Inf stays in them"
    return "Gradients are not reset, so NaN or Inf stays in them"


def _fix(data: dict[str, Any]) -> str:
    if data.get("closure"):
        return (
            f"Call optimizer.zero_grad() at the beginning of the closure: {data.get('optimizer')} may evaluate it"
            " several times in one step."
        )
    before = f" before the {_backward(data)}" if data.get("backward") else ""
    return f"Call optimizer.zero_grad() once in every iteration{before}, unconditionally, also after a skipped step."


def _evidence(data: dict[str, Any], left: float | None) -> dict[str, Any]:
    return {
        "optimizer": data.get("optimizer"),
        "after": data.get("after"),
        "left": None if left is None else wording.number(left),
        "scale": _number(data, "scale"),
    }


def _nonfinite(data: dict[str, Any]) -> str:
    was = "skipped" if data.get("after") == "skipped" else "tried"
    return (
        f"After a step of {data.get('optimizer')} was {was}, its gradients with NaN or Inf were not reset:"
        f" {_backward(data)} adds to them and they are used again{_at(data)}. They stay non-finite until they are"
        " reset, and each step until then fails."
    )


def _added(data: dict[str, Any], left: float | None, scale: float | None) -> str:
    size = "" if left is None else f" The largest remaining value that was read is {left:.2g}."
    was = "skipped" if data.get("after") == "skipped" else "applied"
    return (
        f"Gradients were not reset after a step of {data.get('optimizer')} was {was}, so {_backward(data)} adds to"
        f" them and the sum is used{_at(data)}.{size} {_effect(scale)}"
    )


def _effect(scale: float | None) -> str:
    if scale is None or scale <= 1:
        return "Each update repeats the remaining earlier gradients."
    return (
        f"The remainder is unscaled and counts 1 part in {scale:g} beside scaled gradients, but NaN or Inf that a"
        " skipped step leaves there will stay."
    )


def _backward(data: dict[str, Any]) -> str:
    return f"backward() at {data['backward']}" if data.get("backward") else "backward()"


def _at(data: dict[str, Any]) -> str:
    return f" at {data['caller']}" if data.get("caller") else ""


def _number(data: dict[str, Any], name: str) -> float | None:
    return None if data.get(name) is None else float(data[name])


def _has_remainder(data: dict[str, Any]) -> bool:
    """Whether the gradients contained anything but zeros: adding to zeros has the effect of a reset."""
    return _number(data, "left") != 0


VERDICT = Verdict(
    id="gradients-not-reset",
    severity="page",
    title="Gradients are not reset",
    question="Are gradients of one step added to those of the next?",
    columns=(),
    events=("usage.gradients_not_reset",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.gradients_not_reset", _conclude, decides=_has_remainder),
    explains=(
        "diverged",
        "mixed-scale-gradients",
        "activation-overflow",
        "nonfinite-loss",
        "nonfinite-gradient",
        "scale-collapse",
    ),
)
