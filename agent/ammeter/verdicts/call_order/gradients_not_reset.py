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
    for_good = left is not None and not math.isfinite(left)
    return Finding(
        verdict=VERDICT.id,
        severity="page" if for_good else "ticket",
        title="NaN or Inf is left in the gradients" if for_good else "Gradients are not reset",
        cause=_for_good(data) if for_good else _added(data, left, _number(data, "scale")),
        fix="Call optimizer.zero_grad() once in every iteration, unconditionally: also where the step was skipped."
        + (" If every such step was skipped, the run can go on from where it is." * for_good),
        caller=data.get("caller") or None,
        evidence={
            "optimizer": data.get("optimizer"),
            "after": data.get("after"),
            "left": None if left is None else wording.number(left),
            "scale": _number(data, "scale"),
        },
        **lifecycle_fields(state.opened),
    )


def _for_good(data: dict[str, Any]) -> str:
    was = "skipped" if data.get("after") == "skipped" else "tried"
    return (
        f"A step of {data.get('optimizer')} was {was} with NaN or Inf in its gradients, and they were not reset:"
        f" backward() has added to them and they are used again{_at(data)}. Nothing that is added makes them finite, so"
        " from here on no step is a good one."
    )


def _added(data: dict[str, Any], left: float | None, scale: float | None) -> str:
    size = "" if left is None else f", up to {left:.2g} in those that were looked at,"
    was = "skipped" if data.get("after") == "skipped" else "applied"
    return (
        f"What a step of {data.get('optimizer')} that was {was} left in the gradients{size} was not reset: backward()"
        f" has added to it and the sum is used{_at(data)}. {_weight(scale)}"
    )


def _weight(scale: float | None) -> str:
    if scale is None or scale <= 1:
        return "An update repeats what was left of the gradients before it."
    return (
        f"It is unscaled already and counts little, 1 part in {scale:g}, beside what is scaled; but the first NaN or"
        " Inf that a skipped step leaves there will stay."
    )


def _at(data: dict[str, Any]) -> str:
    return f" at {data['caller']}" if data.get("caller") else ""


def _number(data: dict[str, Any], name: str) -> float | None:
    return None if data.get(name) is None else float(data[name])


def _something_left(data: dict[str, Any]) -> bool:
    """Whether the gradients contained anything but zeros: adding to zeros has the effect of a reset."""
    return _number(data, "left") != 0


VERDICT = Verdict(
    id="gradients-not-reset",
    severity="page",
    title="Gradients are not reset",
    question="Do gradients of one step go into the next one?",
    columns=(),
    events=("usage.gradients_not_reset",),
    state=SingleEventState,
    rows=False,
    judge=judge_event("usage.gradients_not_reset", _conclude, decides=_something_left),
    explains=("mixed-scale-gradients", "nonfinite-loss", "nonfinite-gradient", "scale-collapse"),
)
