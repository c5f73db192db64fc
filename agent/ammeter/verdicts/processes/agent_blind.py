"""agent-blind: a probe of Ammeter was switched off after an error, or records of the run are lost."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Lost

FEW_STEPS = 10
SHARE = 0.01
"""Rows whose loss is not reported: ten, or one in a hundred, change no curve and no verdict. The loss of an event is
always reported, because no other record contains its data."""

MAX_NAMED = 8
MAX_WORDS = 200
"""Maximum numbers of probes or reasons, and of characters per text. They limit state and message."""

REASONS = {
    "journal-cap": "the journal's folder reached its cap",
    "journal-unwritable": "the journal could not be written",
    "device-late": "the device did not deliver their numbers",
    "rejected": "the collector refused them",
    "journal-thinned": "the journal was full, so of older steps only some were kept",
    "journal-deleted": "files of the journal were deleted",
    "torn": "a crash cut off what was being written, or the file is damaged",
    "no-schema": "the record that names their columns is gone",
}


SHOWS = {
    "autocast": "which dtype autocast runs in",
    "census": "the dtypes of weights and optimizer state",
    "checkpoint": "checkpoints that are saved and loaded",
    "gradients": "gradients: norms, NaN, underflow",
    "kernels": "what ran in float32, casts, attention",
    "loss": "the loss, where run.log does not say it",
    "origin": "where a NaN began",
    "resources": "memory and speed",
    "scaler": "the loss scale and skipped steps",
    "usage": "mistakes in the order of calls",
    "user": "what run.log is given",
    "weights": "weights: updates, NaN, direction",
}
"""Probe -> the data that are missing without it."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    step: int = 0
    rows: int = 0
    failed: dict[str, str] = {}
    """Probe -> its error, for the first MAX_NAMED."""
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
    probe, error = str(event.data.get("probe", ""))[:MAX_WORDS], str(event.data.get("error", ""))[:MAX_WORDS]
    if len(state.failed) < MAX_NAMED:
        state = replace(state, failed={**state.failed, probe: error})
    return replace(state, opened=state.opened.at(event.step, event.step))


def _lost(state: State, lost: Lost) -> State:
    reason = lost.reason[:MAX_WORDS]
    if reason not in state.lost and len(state.lost) >= MAX_NAMED:
        return state
    steps, events = state.lost.get(reason, (0, 0))
    state = replace(state, lost={**state.lost, reason: (steps + lost.steps, events + lost.events)})
    return replace(state, opened=state.opened.at(state.step, state.step)) if _matters(state) else state


def _matters(state: State) -> bool:
    steps = sum(steps for steps, _ in state.lost.values())
    return any(events for _, events in state.lost.values()) or steps > max(FEW_STEPS, SHARE * state.rows)


def _conclude(state: State) -> Finding:
    lost = _matters(state) if state.lost else False
    causes = [_blind(probe, error) for probe, error in state.failed.items()]
    if lost:
        causes += [_told(reason, *counts) for reason, counts in state.lost.items()]
    blind = bool(state.failed)
    title = f"Ammeter no longer sees {_unseen(list(state.failed))}" if blind else "Records of this run are missing"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=title,
        cause=" ".join(causes) + " Training goes on as it would have.",
        fix=" ".join(_fixes(state, lost)),
        evidence={"failed": state.failed, "lost": {reason: list(counts) for reason, counts in state.lost.items()}},
        **lifecycle_fields(state.opened),
    )


def _unseen(probes: list[str]) -> str:
    more = f", and {len(probes) - 1} more" if len(probes) > 1 else ""
    return SHOWS.get(probes[0], f"what the {probes[0]} probe read") + more


def _blind(probe: str, error: str) -> str:
    shows = f" From here on nobody sees {SHOWS[probe]}." if probe in SHOWS else ""
    return f"The {probe} probe failed and is switched off ({error}).{shows}"


def _told(reason: str, steps: int, events: int) -> str:
    gone = [wording.count(number, noun) for number, noun in ((steps, "step"), (events, "event")) if number]
    why = f"because {REASONS[reason]}" if reason in REASONS else f"(reason: {reason})"
    return f"{' and '.join(gone) or 'Records'} {'is' if steps + events == 1 else 'are'} gone {why}."


def _fixes(state: State, lost: bool) -> list[str]:
    fixes = []
    if state.failed:
        fixes.append("Report the error above with the versions of torch and ammeter. The next run tries it again.")
    if lost and {"journal-cap", "journal-thinned"} & set(state.lost):
        fixes.append("See that the collector is reached (`ammeter doctor`): it frees the journal as it acknowledges.")
    if lost and "journal-unwritable" in state.lost:
        fixes.append("Give AMMETER_DIR a folder with space that this user may write.")
    if lost and "rejected" in state.lost:
        fixes.append("Bring agent and collector to the same version; shipper.log names what was refused.")
    return fixes or ["Run `ammeter doctor` where the run trains."]


VERDICT = Verdict(
    id="agent-blind",
    severity="ticket",
    title="Ammeter does not see everything",
    question="Did a probe of Ammeter fail, or are records of the run lost?",
    columns=(),
    events=("probe.failed",),
    state=State,
    judge=judge,
)
