"""run-lost: the process died without a word, or its host, or whoever reports for it, is silent."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ammeter.block import Tick, View
from ammeter.verdicts.finding import Finding, Verdict
from ammeter.verdicts.opened import Opened, changed, found
from ammeter.wire import Bye, Hello

SILENCE_SECONDS = 15.0
"""A live shipper is heard every 2 s however quiet the run is; seven heartbeats missed in a row are no hiccup of the
network, which its retries would have bridged."""

MAX_WORDS = 200
"""Characters that are kept of what is known of the end."""

NEVER = -1
"""In place of a step, which counts from 0, where none was finished."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Opened = Opened()
    step: int = NEVER
    rank: int = 0
    host: str = ""
    pid: int = 0
    watched: bool = True
    """Whether it is a rank's stream; what a host's shipper has to say may end as it likes."""
    ended: bool = False
    died: bool = False
    silent_seconds: float = 0.0
    how: str = ""
    """What is known of the end: 'killed by SIGKILL'."""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "bye"):
        if isinstance(part, View):
            state = _rows(state, int(part.steps[-1]))
        elif isinstance(part, Hello):
            state = replace(state, rank=part.rank, host=part.host, pid=part.pid, watched=part.role == "rank")
        elif isinstance(part, Bye):
            state = _bye(state, part)
    if view.tick is not None and state.watched and not state.ended:
        state = _tick(state, view.tick)
    return state, changed(_conclude, before, state)


def _rows(state: State, step: int) -> State:
    """Who sends steps is there, whatever was thought of it."""
    return replace(state, step=step, opened=state.opened if state.ended else state.opened.over())


def _bye(state: State, bye: Bye) -> State:
    step = max(state.step, bye.step)
    if bye.reason != "lost" or not state.watched:
        return replace(state, step=step, ended=True, opened=state.opened.over())
    return replace(state, step=step, ended=True, died=True, how=bye.message[:MAX_WORDS], opened=_at(state.opened, step))


def _tick(state: State, tick: Tick) -> State:
    """Offline nobody is behind with the news, so a free lock says it all; live, the shipper is given its time."""
    if tick.alive:
        return replace(state, opened=state.opened.over()) if state.opened.active else state
    silent = (tick.now - tick.heard) / 1e9
    if state.opened.active or (silent < SILENCE_SECONDS and not tick.offline):
        return state
    died = tick.alive is False
    return replace(state, opened=_at(state.opened, state.step), died=died, silent_seconds=silent)


def _at(opened: Opened, step: int) -> Opened:
    return opened.at(max(step, 0), max(step, 0))


def _conclude(state: State) -> Finding:
    who = f"rank {state.rank}" + (f" (process {state.pid} on {state.host})" if state.host else "")
    last = f"Its last step was {state.step}." if state.step != NEVER else "No step of it was recorded."
    return Finding(
        verdict=VERDICT.id,
        severity="page",
        title=f"Run lost after step {state.step}" if state.step != NEVER else "Run lost before its first step",
        cause=f"{_story(state, who)} {last}",
        fix=_fix(state),
        evidence={
            "last_step": state.step,
            "rank": state.rank,
            "host": state.host,
            "pid": state.pid,
            "cause": "process" if state.died else "host",
            "how": state.how,
            "silent_seconds": round(state.silent_seconds, 1),
        },
        **found(state.opened),
    )


def _story(state: State, who: str) -> str:
    if state.died:
        how = state.how or "it was killed (SIGKILL, out of memory) or crashed, which is not known from here"
        return f"The process of {who} died without a goodbye: {how}."
    silent = f"{state.silent_seconds:.0f} s"
    return (
        f"Nothing was heard of {who} for {silent}, neither from the process nor from the shipper beside it: the host, "
        "its container or the network between is gone, or both processes are."
    )


def _fix(state: State) -> str:
    if "OOM" in state.how:
        return (
            "Give the job more memory, or let it use less: fewer DataLoader workers, smaller batches, no list of losses"
            " that still carry their graph. Then resume from the last checkpoint."
        )
    if state.died:
        return (
            f"Look on {state.host or 'its host'} for the reason: `dmesg -T | grep -i -E 'killed process|segfault'`, the"
            " exit code in the launcher's log, and the memory limit of the job. Then resume from the last checkpoint."
        )
    return (
        f"Look whether {state.host or 'the host'} answers and whether the scheduler still has the job; if so,"
        " look at shipper.log in the run's folder. If it is gone, resume from the last checkpoint elsewhere."
    )


VERDICT = Verdict(
    id="run-lost",
    severity="page",
    title="The run is lost",
    question="Did the process or its host go without saying goodbye?",
    columns=(),
    events=(),
    clock=True,
    state=State,
    judge=judge,
)
