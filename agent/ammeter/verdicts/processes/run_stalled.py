"""run-stalled: the process lives, but completes no more steps.

A notebook or a console is not judged: between two cells it waits for a person.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Severity, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.wire.columns import Tick, View
from ammeter.wire.frames import INTERACTIVE, Bye, Hello

MIN_STALL_SECONDS = 900.0
"""Minimum seconds without a step. Shorter waits are normal: torch waits ten minutes for a collective (NCCL) before it
raises by itself, and first validations, saves and compilations take minutes."""

PAUSE_FACTOR = 10.0
"""Multiple of the run's longest pause so far. Pauses of one kind, such as a validation, differ by a factor of two or
three; a pause of ten times the longest is not one of them."""

PAGE_SECONDS = 3600.0
"""Seconds from which the severity is `page`: torch's longest default timeout is half an hour, so the run will not
continue after an hour."""

MIN_STEPS = 5
"""Steps from which a run has pauses for a comparison. Before, it may still load, compile or warm up."""

WAIT_ENDED_TEXTS = ("KeyboardInterrupt", "imeout", "imed out", "atchdog")
"""Parts of exception messages that show that a person or a timeout ended the waiting."""

NS_PER_SECOND = 1e9
"""Nanoseconds per second: times of frames are whole nanoseconds."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    step: int = -1
    time: int = 0
    """Time of the last row, by the training host's clock."""
    rows: int = 0
    pause: float = 0.0
    """The longest pause so far, in seconds."""
    since: int = 0
    """Time of the first tick without a new row; 0 if there was none. The clock is the observer's."""
    seconds: float = 0.0
    """`seconds`: time without a step at opening. `how`: the reason that ended the waiting, if any."""
    how: str = ""
    rank: int = 0
    host: str = ""
    pid: int = 0
    watched: bool = True
    ranks: int = 0
    """Number of ranks; 0 if not known."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "bye"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            watched = part.role == "rank" and INTERACTIVE not in part.environment
            process = (part.rank, part.host, part.pid)
            state = replace(state, rank=process[0], host=process[1], pid=process[2], watched=watched)
            state = replace(state, ranks=part.world_size)
        elif isinstance(part, Bye) and state.watched:
            state = _ended(state, part)
    if view.tick is not None and state.watched:
        state = _tick(state, view.tick)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    pauses = [int(rows.times[0]) - state.time] if state.rows else []
    if len(rows) > 1:
        pauses.append(int(np.diff(rows.times).max()))
    pause = max(state.pause, float(max(pauses)) / NS_PER_SECOND) if pauses else state.pause
    return replace(
        state,
        opened=state.opened.over(),
        step=int(rows.steps[-1]),
        time=int(rows.times[-1]),
        rows=state.rows + len(rows),
        pause=pause,
        since=0,
    )


def _ended(state: State, bye: Bye) -> State:
    """Processes the end of the process.

    A process that ended by itself was busy. For a killed or interrupted process the wait until its end counts if that
    time is known: an observer waited for the process and recorded its end.
    """
    if bye.reason in ("closed", "exit"):
        return replace(state, watched=False, opened=state.opened.over())
    observed = bye.reason == "lost" and bye.message
    gave_up = bye.reason == "exception" and any(word in bye.message for word in WAIT_ENDED_TEXTS)
    if observed or gave_up:
        state = _without_a_step(state, (bye.time - state.time) / NS_PER_SECOND, bye.message[:80])
    return replace(state, watched=False)


def _tick(state: State, tick: Tick) -> State:
    """Processes a tick.

    With a collector the wait begins with the first tick without new rows, so two clocks are never compared.
    """
    if not tick.alive:
        return state
    if tick.completed_step > state.step:
        state = replace(state, step=tick.completed_step, time=tick.completed_time)
    if tick.offline:
        return _without_a_step(state, (tick.now - state.time) / NS_PER_SECOND)
    state = state if state.since else replace(state, since=tick.now)
    return _without_a_step(state, (tick.now - state.since) / NS_PER_SECOND)


def _without_a_step(state: State, seconds: float, how: str = "") -> State:
    """Opens the finding at the limit, and updates it once when its severity rises."""
    becomes_page = state.seconds < PAGE_SECONDS <= seconds
    if (
        state.rows < MIN_STEPS
        or seconds < max(MIN_STALL_SECONDS, PAUSE_FACTOR * state.pause)
        or (state.opened.active and not becomes_page)
    ):
        return state
    return replace(state, opened=state.opened.at(state.step, state.step), seconds=seconds, how=how)


def _conclude(state: State) -> Finding:
    severity: Severity = "page" if state.seconds >= PAGE_SECONDS else "ticket"
    process = f"Rank {state.rank}" + (f" (process {state.pid} on {state.host})" if state.host else "")
    waited = _duration(state.seconds)
    ended = f" Then the process ended: {state.how}." if state.how else ""
    return Finding(
        verdict=VERDICT.id,
        severity=severity,
        title=f"No step for {waited} after step {state.step}",
        cause=f"{process} completed no step for {waited} after step {state.step}; its longest pause before was"
        f" {_duration(state.pause)}.{ended} {_waits(state)}",
        fix=_fix(state),
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _evidence(state: State) -> dict[str, Any]:
    return {
        "last_step": state.step,
        "seconds_without_a_step": round(state.seconds, 1),
        "longest_pause_seconds": round(state.pause, 3),
        "rank": state.rank,
        "host": state.host,
        "pid": state.pid,
    }


def _waits(state: State) -> str:
    if state.how:
        return f"It waited{_for(state)}, or did work that is not a training step."
    return f"The process lives: it waits{_for(state)}, or does work that is not a training step. Its stack shows which."


def _for(state: State) -> str:
    return " for data, a disk or a lock" if state.ranks == 1 else " for another rank, for data, a disk or a lock"


def _fix(state: State) -> str:
    on = f" on {state.host}" if state.host else ""
    alone = state.ranks == 1
    limits = "DataLoader(timeout=120)" + ("" if alone else " and init_process_group(timeout=...)")
    limits = f"{limits} {'turns' if alone else 'turn'} such a wait into an error"
    if state.how:
        every = "" if alone else " for every rank"
        return (
            f"Call faulthandler.dump_traceback_later(900, repeat=True) in the program, or run `py-spy dump --pid PID`"
            f"{every} before you end a process that waits: the stack shows where it waits. {limits}."
        )
    stack = f"Run `py-spy dump --pid {state.pid}`{on}: its stack shows the line that waits."
    if not alone:
        others = f"the other {state.ranks - 1} ranks" if state.ranks > 2 else "every other rank"
        stack = (
            f"Run `py-spy dump --pid {state.pid}`{on}, and the same for {others}, to see where they wait: they wait for"
            " the rank whose stack differs."
        )
    return f"{stack} Then remove what it waits for, or end the process. {limits}, which names the place."


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


VERDICT = Verdict(
    id="run-stalled",
    severity="ticket",
    title="Run stalled",
    question="Is the process alive, but without a completed step for far longer than any earlier pause?",
    columns=(),
    events=(),
    clock=True,
    state=State,
    judge=judge,
    explains=("run-lost",),
)
