"""agent-blind: a probe of Ammeter was switched off after an error, or records of the run are lost."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Lost

MAX_UNREPORTED_STEPS = 10
MAX_UNREPORTED_SHARE = 0.01
"""Rows whose loss is not reported: ten, or one in a hundred, change no curve and no verdict. The loss of an event is
always reported, because no other record contains its data."""

MAX_LISTED = 8
MAX_TEXT_CHARS = 200
"""Maximum numbers of probes or reasons, and of characters per text. They limit state and message."""

REASONS = {
    "journal-cap": "the journal folder reached its size limit",
    "journal-unwritable": "the journal could not be written",
    "device-late": "the device did not deliver their values",
    "rejected": "the collector rejected them",
    "journal-thinned": "the journal was full, so it discarded some of the older steps",
    "journal-deleted": "journal files were deleted",
    "torn": "a crash interrupted a write, or the file is damaged",
    "no-schema": "the record with the names of their columns is missing",
}

PROBE_DATA = {
    "autocast": "the dtype of autocast",
    "census": "the dtypes of weights and optimizer state",
    "checkpoint": "saved and loaded checkpoints",
    "gradients": "gradient norms, underflow and NaN in gradients",
    "kernels": "operators in float32, casts and attention kernels",
    "loss": "the loss, unless the program passes it to run.log",
    "origin": "the origin of NaN and Inf",
    "resources": "memory and speed",
    "scaler": "the loss scale and skipped steps",
    "usage": "mistakes in the order of calls",
    "user": "values of run.log",
    "weights": "weight updates, their direction and NaN in weights",
}
"""Probe -> the data that are missing without it."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    step: int = 0
    rows: int = 0
    failed: dict[str, str] = {}
    """Probe -> its error, for the first MAX_LISTED."""
    lost: dict[str, tuple[int, int]] = {}
    """Reason -> (steps, events)."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("probe.failed", "lost"):
        if isinstance(part, View):
            state = replace(state, step=int(part.steps[-1]), rows=state.rows + len(part))
        elif isinstance(part, Event):
            state = _failed(state, part)
        elif isinstance(part, Lost):
            state = _lost(state, part)
    return state, changed(_conclude, before, state)


def _failed(state: State, event: Event) -> State:
    probe, error = str(event.data.get("probe", ""))[:MAX_TEXT_CHARS], str(event.data.get("error", ""))[:MAX_TEXT_CHARS]
    if len(state.failed) < MAX_LISTED:
        state = replace(state, failed={**state.failed, probe: error})
    return replace(state, opened=state.opened.at(event.step, event.step))


def _lost(state: State, lost: Lost) -> State:
    reason = lost.reason[:MAX_TEXT_CHARS]
    if reason not in state.lost and len(state.lost) >= MAX_LISTED:
        return state
    steps, events = state.lost.get(reason, (0, 0))
    state = replace(state, lost={**state.lost, reason: (steps + lost.steps, events + lost.events)})
    return replace(state, opened=state.opened.at(state.step, state.step)) if _matters(state) else state


def _matters(state: State) -> bool:
    steps = sum(steps for steps, _ in state.lost.values())
    return any(events for _, events in state.lost.values()) or steps > max(
        MAX_UNREPORTED_STEPS, MAX_UNREPORTED_SHARE * state.rows
    )


def _conclude(state: State) -> Finding:
    lost = _matters(state) if state.lost else False
    causes = [_switched_off(probe, error) for probe, error in state.failed.items()]
    if lost:
        causes += [_missing(reason, *counts) for reason, counts in state.lost.items()]
    records = "Records of this run are missing"
    title = f"Ammeter stopped recording {_unrecorded(list(state.failed))}" if state.failed else records
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause="The training is not affected. " + " ".join(causes),
        fix=" ".join(_fixes(state, lost)),
        evidence={"failed": state.failed, "lost": {reason: list(counts) for reason, counts in state.lost.items()}},
        **lifecycle_fields(state.opened),
    )


def _unrecorded(probes: list[str]) -> str:
    more = f", and the data of {wording.count(len(probes) - 1, 'more probe')}" if len(probes) > 1 else ""
    return PROBE_DATA.get(probes[0], f"the data of the {probes[0]} probe") + more


def _switched_off(probe: str, error: str) -> str:
    data = f", which records {PROBE_DATA[probe]}," if probe in PROBE_DATA else ""
    return f'The part of Ammeter named "{probe}"{data} failed and is switched off for this run ({error}).'


def _missing(reason: str, steps: int, events: int) -> str:
    lost = [wording.count(number, noun) for number, noun in ((steps, "step"), (events, "event")) if number]
    why = f"because {REASONS[reason]}" if reason in REASONS else f"(reason: {reason})"
    return f"{' and '.join(lost) or 'Records'} {'is' if steps + events == 1 else 'are'} missing {why}."


def _fixes(state: State, lost: bool) -> list[str]:
    fixes = []
    if state.failed:
        fixes.append(
            "Leave the run as it is: the next run records these data again. Report the error to the maintainers of"
            " Ammeter, with what ammeter doctor prints."
        )
    if lost and {"journal-cap", "journal-thinned"} & set(state.lost):
        fixes.append("Check the connection to the collector with `ammeter doctor`: acknowledged journals are deleted.")
    if lost and "journal-unwritable" in state.lost:
        fixes.append("Set AMMETER_DIR to a folder that has free space and that this user can write.")
    if lost and "rejected" in state.lost:
        fixes.append("Install the same version of agent and collector; shipper.log lists the rejected records.")
    return fixes or ["Run `ammeter doctor` on the training host."]


VERDICT = Verdict(
    id="agent-blind",
    severity="ticket",
    title="Ammeter's recording is incomplete",
    question="Did a probe of Ammeter fail, or are records of the run lost?",
    columns=(),
    events=("probe.failed",),
    state=State,
    judge=judge,
)
