"""run-lost: the process died or was ended from outside, or its host or shipper is silent."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Severity, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import path_of
from ammeter.verdicts.processes import run_endings
from ammeter.wire.columns import Tick, View, measured
from ammeter.wire.frames import Bye, Event, Hello

SILENCE_SECONDS = 15.0
"""Seconds of silence. A live shipper sends every 2 s even if the run has nothing to send; seven missed heartbeats in a
row are no short network fault, which its retries would have bridged."""

MAX_REASON_CHARS = 200
"""Maximum characters of the stored reason of an end."""

NO_STEP = -1
"""Stands for a missing step, because steps count from 0."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    step: int = NO_STEP
    rank: int = 0
    host: str = ""
    pid: int = 0
    watched: bool = True
    """Whether this is a rank's stream. The end of a shipper's own stream does not matter."""
    ended: bool = False
    died: bool = False
    silent_seconds: float = 0.0
    how: str = ""
    """The known reason of the end, such as 'killed by SIGKILL'."""
    by: str = run_endings.UNKNOWN
    limit: int = 0
    """Memory limit of the process in bytes; 0 if unknown."""
    memory: float = 0.0
    """Memory of the process in bytes at the last reading."""
    saved: int = NO_STEP
    """Step of the last checkpoint that was seen."""
    path: str = ""


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "bye", "checkpoint.saved"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = replace(state, rank=part.rank, host=part.host, pid=part.pid, watched=part.role == "rank")
        elif isinstance(part, Bye):
            state = _bye(state, part)
        elif isinstance(part, Event):
            state = _saved(state, part)
    if view.tick is not None and state.watched and not state.ended:
        state = _tick(state, view.tick)
    return state, changed(_conclude, before, state)


def _rows(state: State, rows: View) -> State:
    """Processes rows, which prove that the process lives and so close the verdict."""
    opened = state.opened if state.ended else state.opened.over()
    read = rows.scalar("host_rss_bytes")
    read = read[measured(read)]
    memory = float(read[-1]) if len(read) else state.memory
    return replace(state, step=int(rows.steps[-1]), opened=opened, memory=memory)


def _saved(state: State, event: Event) -> State:
    contents = event.data.get("contents")
    if not isinstance(contents, dict) or not contents.get("weights"):
        return state
    return replace(state, saved=event.step, path=path_of(event.data))


def _bye(state: State, bye: Bye) -> State:
    step, by = max(state.step, bye.step), run_endings.ended_by(bye)
    if not by or not state.watched:
        return replace(state, step=step, ended=True, opened=state.opened.over())
    known = replace(
        state, step=step, ended=True, died=True, how=bye.message[:MAX_REASON_CHARS], by=by, limit=bye.memory_limit
    )
    return replace(known, opened=_at(state.opened, step))


def _tick(state: State, tick: Tick) -> State:
    """Judges a process by the clock.

    Offline the journal is complete, so a free lock proves the end. With a collector the shipper has SILENCE_SECONDS to
    send.
    """
    if tick.alive:
        return replace(state, opened=state.opened.over()) if state.opened.active else state
    state = replace(state, step=max(state.step, tick.completed_step))
    silent = (tick.now - tick.last_seen) / 1e9
    if state.opened.active or (silent < SILENCE_SECONDS and not tick.offline):
        return state
    died = tick.alive is False
    return replace(state, opened=_at(state.opened, state.step), died=died, silent_seconds=silent)


def _at(opened: Lifecycle, step: int) -> Lifecycle:
    return opened.at(max(step, 0), max(step, 0))


def _conclude(state: State) -> Finding:
    process = f"rank {state.rank}" + (f" (process {state.pid} on {state.host})" if state.host else "")
    last = f"Its last recorded step is {state.step}." if state.step != NO_STEP else "It recorded no step."
    by = state.by if state.died else run_endings.SILENCE
    return Finding(
        verdict=VERDICT.id,
        severity=_severity(by),
        title=f"{_TITLES.get(by, 'Run lost')} {_where(state)}",
        cause=f"{_story(state, process)} {last}",
        fix=_fix(state),
        evidence=_evidence(state, by),
        **lifecycle_fields(state.opened),
    )


def _evidence(state: State, by: str) -> dict[str, Any]:
    return {
        "last_step": state.step,
        "rank": state.rank,
        "host": state.host,
        "pid": state.pid,
        "cause": "process" if state.died else "host",
        "ended_by": by,
        "how": state.how,
        "silent_seconds": round(state.silent_seconds, 1),
        "memory_bytes": int(state.memory) or None,
        "memory_limit_bytes": state.limit or None,
        "last_checkpoint": state.path,
        "last_saved_step": state.saved if state.saved != NO_STEP else None,
    }


def _severity(by: str) -> Severity:
    """Returns `ticket` for requested ends and for out-of-memory errors of the program, else `page`."""
    return "ticket" if by in (*run_endings.REQUESTED, *run_endings.OUT_OF_MEMORY) else "page"


_TITLES = {
    "oom-killer": "Run killed by the OOM killer",
    run_endings.DEVICE: "Run out of device memory",
    run_endings.PROCESS: "Run out of memory",
    "crash": "Run crashed",
    "sigterm": "Run ended by SIGTERM",
    "job": "Run ended with its job",
    "slurm": "Run ended by Slurm",
    "kubernetes": "Run ended by Kubernetes",
    "time-limit": "Run ended at its time limit",
}


def _where(state: State) -> str:
    return f"after step {state.step}" if state.step != NO_STEP else "before its first step"


def _story(state: State, process: str) -> str:
    if not state.died:
        silent = f"{state.silent_seconds:.0f} s"
        return (
            f"Neither the process of {process} nor the one beside it that sends its data (the shipper) has sent"
            f" anything for {silent}: the host, its container or the network is down, or both processes have ended."
        )
    if state.by in run_endings.REQUESTED:
        how = state.how or "SIGTERM"
        return f"The process of {process} was terminated from outside: {_REQUESTS[state.by]} ({how})."
    if state.by in run_endings.OUT_OF_MEMORY:
        memory = "device memory" if state.by == run_endings.DEVICE else "memory"
        return f"The process of {process} ran out of {memory} and ended with an exception: {state.how.rstrip('. ')}."
    if not state.how:
        return (
            f"The process of {process} ended without a final record: a signal such as SIGKILL ended it, it crashed, or"
            " it called os._exit(); the cause is unknown."
        )
    return f"The process of {process} ended unexpectedly: {state.how}.{_memory(state)}"


_REQUESTS = {
    "sigterm": "it received SIGTERM from a person, a launcher or a scheduler; the sender is unknown",
    "job": "its whole job or pod ended; the reason is unknown",
    "slurm": "Slurm ended its job before the time limit, so it was preempted or cancelled, or its node was drained",
    "kubernetes": "its pod was evicted, preempted or deleted, or its node was drained",
    "time-limit": "its Slurm job reached its time limit",
}


def _memory(state: State) -> str:
    if state.by != "oom-killer":
        return ""
    used = f" It used {_size(state.memory)} of memory at the last reading." if state.memory else ""
    return used + (
        f" The limit was {_size(state.limit)}, for all processes of its control group." if state.limit else ""
    )


def _size(amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def _fix(state: State) -> str:
    if not state.died:
        return (
            f"Check whether the job still runs on {state.host or 'the host'}{_pid(state)}. If it has ended, find out"
            " why: `dmesg -T | grep -i -E 'killed process|segfault'`, and the exit code in the launcher's log. If it"
            " runs, read shipper.log in the run's folder under AMMETER_DIR: its data do not arrive. If the host is"
            f" down, start on another one, from {_checkpoint(state)}."
        )
    return f"{_remedy(state)} Then resume from {_checkpoint(state)}."


def _remedy(state: State) -> str:
    if state.by == run_endings.DEVICE:
        return (
            "Reduce the device memory of a step: use a smaller batch with gradient accumulation, activation"
            " checkpointing, or autocast for the forward pass, and do not keep losses with their graph"
            " (losses.append(loss.detach()))."
        )
    if state.by in ("oom-killer", run_endings.PROCESS):
        return (
            "Give the job more memory, or reduce its memory: use fewer DataLoader workers or smaller batches, and do"
            " not keep losses with their graph (losses.append(loss.detach()))."
        )
    if state.by in run_endings.REQUESTED:
        return _CHECKS[state.by]
    host = state.host or "its host"
    return (
        f"Find the cause on {host}: run `dmesg -T | grep -i -E 'killed process|segfault'`, and check the exit code in"
        " the launcher's log and the memory limit of the job."
    )


_CHECKS = {
    "sigterm": "Find the sender: torchrun sends SIGTERM to the other ranks when one fails, so check those ranks first."
    " A scheduler sends it at the time limit or for a preemption.",
    "job": "Find out why the job ended: `sacct -j JOB` for Slurm, `kubectl describe pod` for Kubernetes.",
    "slurm": "Find the reason with `sacct -j JOB -o State,Reason,ExitCode`. If jobs are preempted, submit them with"
    " --requeue.",
    "kubernetes": "Find the reason with `kubectl describe pod` and `kubectl get events`.",
    "time-limit": "Request more time (sbatch --time), or save before the limit (sbatch --signal=USR1@300).",
}


def _pid(state: State) -> str:
    return f" (`ps -p {state.pid}`)" if state.pid else ""


def _checkpoint(state: State) -> str:
    if state.saved == NO_STEP:
        return "the last checkpoint" + ("; none was recorded in this run" if state.rank == 0 else "")
    behind = state.step - state.saved
    repeated = f", which repeats {wording.count(behind, 'step')}" if behind > 0 else ""
    return f"the checkpoint of step {state.saved}" + (f" ({state.path})" if state.path else "") + repeated


VERDICT = Verdict(
    id="run-lost",
    severity="page",
    title="Run lost",
    question="Did the process end unexpectedly or by request, did it run out of memory, or is its host unreachable?",
    columns=("host_rss_bytes",),
    events=("checkpoint.saved",),
    clock=True,
    state=State,
    judge=judge,
)
