"""run-lost says by what a process ended as far as it is known, or that nobody is heard of any more."""

from __future__ import annotations

import msgspec
import pytest

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import Tick, view
from ammeter.wire.frames import Bye, Event, Hello
from tests.agent.stream_builder import SECOND, Stream, warm
from tests.agent.stream_judgement import findings, judged, views


def tick(stream: Stream, seconds: float, alive: bool | None, offline: bool = False) -> Tick:
    return Tick(stream.now + int(seconds * SECOND), alive, stream.now, offline)


def found(stream: Stream, looked: Tick | None = None) -> Finding:
    return findings(stream, looked)["run-lost"]


def test_a_bye_with_reason_lost_is_a_process_that_died() -> None:
    finding = found(warm(40).bye("lost"))
    assert ("page", 39, 39) == (finding.severity, finding.first_step, finding.last_step)
    assert "The process of rank 0 (process 4711 on node7) ended without a final record" in finding.cause
    assert "Its last recorded step is 39." in finding.cause
    assert "dmesg" in finding.fix
    assert "process" == finding.evidence["cause"]


def test_what_is_known_of_the_end_is_said() -> None:
    finding = found(warm(40).bye("lost", "killed by SIGKILL"))
    assert "ended unexpectedly: killed by SIGKILL. Its last recorded step is 39." in finding.cause
    assert "killed by SIGKILL" == finding.evidence["how"]
    assert "dmesg" in finding.fix


def test_who_ran_out_of_memory_is_told_what_to_do_about_memory() -> None:
    finding = found(warm(40).bye("lost", "killed by SIGKILL; the kernel's OOM killer did it"))
    assert "the kernel's OOM killer did it" in finding.cause
    assert finding.fix.startswith("Give the job more memory")


def test_silence_that_nobody_can_explain_is_a_lost_host() -> None:
    stream = warm(40)
    finding = found(stream, tick(stream, 15, alive=None))
    assert (
        "Neither the process of rank 0 (process 4711 on node7) nor the one beside it that sends its data"
        in finding.cause
    )
    assert "Check whether the job still runs on node7" in finding.fix
    assert "host" == finding.evidence["cause"]


def test_silence_with_a_free_lock_is_a_process_that_died() -> None:
    stream = warm()
    assert "ended without a final record" in found(stream, tick(stream, 20, alive=False)).cause


@pytest.mark.parametrize(("seconds", "alive"), [(14, None), (14, False), (3600, True)])
def test_it_is_not_lost_yet(seconds: float, alive: bool | None) -> None:
    stream = warm()
    assert {} == findings(stream, tick(stream, seconds, alive))


def test_offline_a_free_lock_says_it_at_once() -> None:
    stream = warm()
    assert "ended without a final record" in found(stream, tick(stream, 0, alive=False, offline=True)).cause
    assert {} == findings(stream, tick(stream, 10, alive=True, offline=True))
    assert {"run-stalled"} == set(findings(stream, tick(stream, 3600, alive=True, offline=True)))


@pytest.mark.parametrize("reason", ["closed", "exit", "exception"])
def test_who_said_goodbye_is_not_lost(reason: str) -> None:
    stream = warm().bye(reason)
    assert {} == findings(stream, tick(stream, 3600, alive=None))


def test_a_host_that_comes_back_ends_it() -> None:
    stream = warm()
    states, lost = judged(stream, tick=tick(stream, 60, alive=None))
    assert lost["run-lost"].active
    stream.good(65536)
    (view,) = views(stream.frames[-1:], schema=stream.schema)
    (back,) = verdicts.judge(states, view).findings
    assert not back.active


def test_a_run_that_never_finished_a_step_says_so() -> None:
    finding = found(Stream().bye("lost"))
    assert "Run lost before its first step" == finding.title
    assert 0 == finding.first_step


def test_what_a_shipper_says_of_its_host_may_end_as_it_likes() -> None:
    stream = Stream()
    assert isinstance(stream.frames[0], Hello)
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], role="host")
    assert {} == findings(stream.bye("lost"), tick(stream, 3600, alive=None))


# -- by what it was ended ---------------------------------------------------------------------------------------------


def ended(reason: str, message: str = "", by: str = "", limit: int = 0, stream: Stream | None = None) -> Finding:
    stream = (stream or warm(40)).bye(reason, message)
    last = stream.frames[-1]
    assert isinstance(last, Bye)
    stream.frames[-1] = msgspec.structs.replace(last, ended_by=by, memory_limit=limit)
    return found(stream)


ENDS = {
    ("lost", "killed by SIGKILL; the kernel's OOM killer did it", "oom-killer"): (
        *("oom-killer", "page", "Run killed by the OOM killer after step 39"),
        "Give the job more memory",
    ),
    ("lost", "killed by SIGKILL; the kernel's OOM killer did it", ""): (
        *("oom-killer", "page", "Run killed by the OOM killer after step 39"),
        "Give the job more memory",
    ),
    ("lost", "killed by SIGKILL", ""): ("sigkill", "page", "Run lost after step 39", "Find the cause on node7"),
    ("lost", "killed by SIGSEGV", ""): ("crash", "page", "Run crashed after step 39", "Find the cause on node7"),
    ("lost", "killed by SIGBUS", ""): ("crash", "page", "Run crashed after step 39", "Find the cause on node7"),
    ("lost", "killed by SIGABRT", ""): ("crash", "page", "Run crashed after step 39", "Find the cause on node7"),
    ("lost", "ended with exit code 1", ""): ("error", "page", "Run lost after step 39", "Find the cause on node7"),
    ("lost", "ended with exit code 17", ""): ("exit", "page", "Run lost after step 39", "Find the cause on node7"),
    ("lost", "", ""): ("unknown", "page", "Run lost after step 39", "Find the cause on node7"),
    ("lost", "", "something newer"): ("unknown", "page", "Run lost after step 39", "Find the cause on node7"),
    ("signal", "SIGTERM", ""): ("sigterm", "ticket", "Run ended by SIGTERM after step 39", "Find the sender"),
    ("signal", "SIGTERM", "time-limit"): (
        *("time-limit", "ticket", "Run ended at its time limit after step 39"),
        "Request more time",
    ),
    ("signal", "SIGTERM", "slurm"): (
        "slurm",
        "ticket",
        "Run ended by Slurm after step 39",
        "Find the reason with `sacct",
    ),
    ("signal", "SIGTERM", "kubernetes"): (
        *("kubernetes", "ticket", "Run ended by Kubernetes after step 39"),
        "Find the reason with `kubectl",
    ),
    ("signal", "SIGTERM", "job"): (
        "job",
        "ticket",
        "Run ended with its job after step 39",
        "Find out why the job ended",
    ),
    ("exception", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", ""): (
        *("device-memory", "ticket", "Run out of device memory after step 39"),
        "Reduce the device memory of a step",
    ),
    ("exception", "torch.AcceleratorError: CUDA error: out of memory", ""): (
        *("device-memory", "ticket", "Run out of device memory after step 39"),
        "Reduce the device memory of a step",
    ),
    ("exception", "MemoryError", ""): (
        *("process-memory", "ticket", "Run out of memory after step 39"),
        "Give the job more memory",
    ),
    ("exception", "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", ""): (
        *("process-memory", "ticket", "Run out of memory after step 39"),
        "Give the job more memory",
    ),
}


@pytest.mark.parametrize("said", ENDS)
def test_by_what_it_was_ended_is_told_apart(said: tuple[str, str, str]) -> None:
    by, severity, title, fix = ENDS[said]
    finding = ended(*said)
    assert (by, severity, title) == (finding.evidence["ended_by"], finding.severity, finding.title)
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: torch.OutOfMemoryError: CUDA out of memory",
        "RuntimeError: no out of memory here",
        "mine.MemoryError: it forgot",
        "KeyboardInterrupt",
        "",
    ],
)
def test_another_error_of_the_program_is_not_taken_for_a_want_of_memory(message: str) -> None:
    assert {} == findings(warm(40).bye("exception", message))


def test_a_process_that_ends_with_success_and_without_a_goodbye_is_not_lost() -> None:
    assert {} == findings(warm(40).bye("lost", "ended with exit code 0"))


def test_of_a_free_lock_no_reason_is_claimed() -> None:
    stream = warm()
    finding = found(stream, tick(stream, 20, alive=False))
    assert ("unknown", "page") == (finding.evidence["ended_by"], finding.severity)
    assert (
        "a signal such as SIGKILL ended it, it crashed, or it called os._exit(); the cause is unknown" in finding.cause
    )


def test_a_silent_host_keeps_its_own_words() -> None:
    stream = warm()
    finding = found(stream, tick(stream, 20, alive=None))
    assert ("silence", "Run lost after step 39") == (finding.evidence["ended_by"], finding.title)


def test_who_was_killed_for_memory_is_told_what_it_had_and_might_have() -> None:
    stream = warm(40)
    stream.good(65536, host_rss_bytes=3.5 * 2**30)
    stream.good(65536)
    finding = ended("lost", "killed by SIGKILL; the kernel's OOM killer did it", "oom-killer", 4 * 2**30, stream)
    assert (int(3.5 * 2**30), 4 * 2**30) == (
        finding.evidence["memory_bytes"],
        finding.evidence["memory_limit_bytes"],
    )
    assert "It used 3.5 GiB of memory at the last reading. The limit was 4.0 GiB" in finding.cause


def test_the_checkpoint_to_go_back_to_is_named() -> None:
    stream = warm(40)
    stream.event("checkpoint.saved", path="/data/run.pt", contents={"weights": True})
    for _ in range(5):
        stream.good(65536)
    saved = next(frame.step for frame in stream.frames if isinstance(frame, Event) and frame.name == "checkpoint.saved")
    finding = ended("signal", "SIGTERM", "slurm", stream=stream)
    last = finding.evidence["last_step"]
    assert (
        f"resume from the checkpoint of step {saved} (/data/run.pt), which repeats {last - saved} step" in finding.fix
    )
    assert (saved, "/data/run.pt") == (finding.evidence["last_saved_step"], finding.evidence["last_checkpoint"])
    assert "none was recorded in this run" in ended("signal", "SIGTERM").fix


def test_a_silent_host_is_lost_after_its_last_completed_step_not_its_last_row() -> None:
    stream = warm(40)
    states, _ = judged(stream)
    tick = Tick(stream.now + 16 * SECOND, None, stream.now, False, 57, stream.now)
    (finding,) = verdicts.judge(states, view(stream.schema, (), tick=tick)).findings
    assert "Run lost after step 57" == finding.title
