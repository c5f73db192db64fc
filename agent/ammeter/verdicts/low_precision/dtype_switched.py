"""dtype-switched: backward() runs a part of the forward pass again, in another dtype."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.framework.single_event import SingleEventState, judge_event

EFFECTS = {
    "float16": "float16 ends at 65504 and rounds numbers below 2^-25 to zero, so that a recomputation in it may"
    " overflow or underflow where the forward pass did not.",
    "bfloat16": "bfloat16 has 8 significant bits, so that the recomputed numbers are coarser.",
    "float32": "They differ by the rounding of the forward pass, and the recomputation costs the time and memory of"
    " float32.",
}
"""Dtype of the recomputation -> its effect. Half the smallest float16, 2^-24, is rounded to zero."""

EVIDENCE = ("dtype", "again", "autocast", "autocast_again", "modules", "line", "checkpoint", "raised")


def _conclude(state: SingleEventState) -> Finding:
    data = state.data
    caller = str(data.get("caller") or data.get("line") or "")
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=_title(data),
        cause=f"{_seen(data)} {_autocast(data)} {_effect(data)}",
        fix=_fix(data),
        module=str(data.get("module") or "") or None,
        caller=caller or None,
        evidence={name: data.get(name) for name in EVIDENCE},
        **lifecycle_fields(state.opened),
    )


def _title(data: dict[str, Any]) -> str:
    if not data.get("again"):
        return "backward() recomputes a part of the forward pass under another autocast"
    place = str(data.get("module") or "") or "A part of the model"
    return f"{place} runs in {data.get('dtype')}, but is recomputed in {data['again']} in backward()"


def _seen(data: dict[str, Any]) -> str:
    module, others = str(data.get("module") or "") or "the model", int(data.get("modules") or 1) - 1
    more = f" The same holds for {wording.count(others, 'other module')}." if others > 0 else ""
    again = f"{_by(data)} ran it again in backward(){_at(data)}"
    if not data.get("again"):
        return f"{_capital(module)} ran in the forward pass and raised an error when {again}."
    raised = " The recomputation then raised an error." if data.get("raised") else ""
    return (
        f"{_capital(module)} returned {data.get('dtype')} in the forward pass, and {data['again']} when {again}."
        f"{more}{raised}"
    )


def _by(data: dict[str, Any]) -> str:
    return "torch.utils.checkpoint" if data.get("checkpoint") else "an autograd.Function"


def _at(data: dict[str, Any]) -> str:
    line = data.get("caller") or data.get("line")
    return f" at {line}" if line else ""


def _autocast(data: dict[str, Any]) -> str:
    before, again = (str(data.get(name) or "off") for name in ("autocast", "autocast_again"))
    if before == again:
        return f"Autocast was {_state(before)} in both passes."
    return f"Autocast was {_state(before)} in the forward pass and {_state(again)} in the recomputation."


def _state(autocast: str) -> str:
    return "off" if autocast == "off" else f"on with {autocast}"


def _effect(data: dict[str, Any]) -> str:
    if not data.get("again"):
        return "Its operators therefore received other dtypes than before."
    of_values = (
        "The gradients of this part therefore belong to other numbers than those that the loss was computed from."
    )
    effect = EFFECTS.get(str(data["again"]), "")
    return f"{of_values} {effect}".rstrip()


def _fix(data: dict[str, Any]) -> str:
    if data.get("autocast") == data.get("autocast_again"):
        return (
            f"Give the recomputation{_at(data)} inputs and weights in the dtypes of the forward pass: cast them in both"
            " passes, or in none."
        )
    if data.get("checkpoint"):
        return (
            "Enter autocast outside of checkpoint(), once for the whole forward pass: checkpoint() restores the"
            " autocast that is on where it is called. If you pass context_fn, let both of its contexts enter the same"
            " autocast; inside of the checkpointed function, do not choose autocast by a flag or by the grad mode."
        )
    before = str(data.get("autocast") or "off")
    autocast = "enabled=False" if before == "off" else f"dtype=torch.{before}"
    return (
        f"Run the recomputation{_at(data)} under torch.autocast(device_type, {autocast}), as the forward pass. Or"
        " replace the Function by torch.utils.checkpoint.checkpoint(), which restores autocast by itself."
    )


def _shows(finding: Finding, consequence: str) -> bool:
    """A missing loss scale is a consequence only if float16 is that of the recomputation."""
    into_float16 = finding.evidence.get("again") == "float16" != finding.evidence.get("dtype")
    return consequence != "no-loss-scaling" or into_float16


def _capital(module: str) -> str:
    return "The model" if module == "the model" else module


VERDICT = Verdict(
    id="dtype-switched",
    severity="ticket",
    title="Recomputed in another dtype",
    question="Does backward() recompute a part of the forward pass in another dtype?",
    columns=(),
    events=("kernels.recomputed",),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=SingleEventState,
    rows=False,
    judge=judge_event("kernels.recomputed", _conclude),
    explains=("unsupported-op", "no-loss-scaling"),
    shows=_shows,
)
