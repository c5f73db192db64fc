"""By what a process was ended, as `ammeter report` says it of real ones that real signals and a real kernel end."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ammeter import journal
from ammeter.environment import identity
from ammeter.environment.cgroups import CGROUPS, memory_limit
from ammeter.launcher.termination_source import Received, SignalRecord
from ammeter.report import diagnosis
from ammeter.shipper import process_death
from ammeter.shipper.process_death import DeathCauses
from ammeter.verdicts.framework.finding import Finding
from tests.agent.launching import launch
from tests.agent.programs import Program, start

pytestmark = pytest.mark.long

SEEN_SECONDS, COUNTED_SECONDS = 0.3, 1.2
"""Time in which the processes beside a program read its first record, and the kernel's count."""


def trains(seconds: float) -> str:
    """Five steps, then a pause of so many seconds."""
    return f"for _ in range(5): step()\nimport time\ntime.sleep({seconds})\n"


STEPS = trains(SEEN_SECONDS)
READY = STEPS + "print('ready', os.getpid(), flush=True)\n"
WAITS = READY + "time.sleep(60)\n"

STAYS = "signal.signal(signal.SIGTERM, lambda *_: None)\n" + READY + "while True: time.sleep(1)\n"

EATS = """
hoard = []
while True: hoard.append(bytearray(b"x" * 2**24))
"""

LIMIT = 400 * 2**20


def pid(program: Program) -> int:
    """The process id of the script, once it has trained."""
    assert program.process.stdout is not None
    return int(program.process.stdout.readline().split()[1])


def found(program: Program, seconds: float = 10) -> Finding:
    """The one finding, once somebody has ended the stream."""
    folder = program.end().folder
    (run,) = folder.iterdir()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(journal.ended(stream) for stream in journal.streams(run)):
        time.sleep(0.05)
    (cause,) = diagnosis.diagnose(run).findings
    return cause.finding


def by(finding: Finding) -> tuple[str, str, str]:
    return finding.verdict, finding.severity, finding.evidence["ended_by"]


# -- with `ammeter run` -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "environment", "signals"),
    [
        ("sigterm", {}, ["TERM"]),
        # from within the container, and in a job; test_who_told_it_to_end has each of them alone
        ("sigterm", {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SLURM_JOB_ID": "7"}, ["TERM"]),
    ],
)
def test_sigterm_names_who_sent_it(
    expected: str, environment: dict[str, Any], signals: list[str], tmp_path: Path
) -> None:
    program = launch(WAITS, tmp_path, **environment)
    pid(program)
    for name in signals:
        os.kill(program.process.pid, getattr(signal, f"SIG{name}"))
    finding = found(program)
    assert ("run-lost", "ticket", expected) == by(finding)
    name = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert f"SIGTERM from {name} (process {os.getpid()})" in finding.cause


def test_a_process_that_did_not_end_at_sigterm_and_was_killed_was_told_to_end(tmp_path: Path) -> None:
    program = launch(STAYS, tmp_path)
    script = pid(program)
    os.kill(program.process.pid, signal.SIGTERM)
    time.sleep(0.5)
    os.kill(script, signal.SIGKILL)
    finding = found(program)
    assert ("run-lost", "ticket", "sigterm") == by(finding)
    assert ", and SIGKILL " in finding.cause


def test_sigkill_alone_is_no_want_of_memory(tmp_path: Path) -> None:
    program = launch(WAITS, tmp_path)
    os.kill(pid(program), signal.SIGKILL)
    assert ("run-lost", "page", "sigkill") == by(found(program))


def test_an_error_for_want_of_memory_is_one(tmp_path: Path) -> None:
    finding = found(launch(STEPS + "torch.empty(10**15)", tmp_path))
    assert ("run-lost", "ticket", "process-memory") == by(finding)
    assert "DefaultCPUAllocator" in finding.cause


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit, for root on a machine with version 1 or 2."""
    first = CGROUPS / "memory"
    root, name = (first, "memory.limit_in_bytes") if first.is_dir() else (CGROUPS, "memory.max")
    made = root / f"ammeter-{uuid.uuid4().hex}"
    try:
        made.mkdir()
        (made / name).write_text(str(LIMIT))
    except OSError as error:
        if made.exists():
            made.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    deadline = time.monotonic() + 20
    while (made / "cgroup.procs").read_text().split() and time.monotonic() < deadline:
        time.sleep(0.1)
    made.rmdir()


def joins(group: Path) -> str:
    return f"open('{group}/cgroup.procs', 'w').write('0')\n"


def test_a_process_that_the_kernel_killed_for_its_memory_is_told_apart(group: Path, tmp_path: Path) -> None:
    """`ammeter run` itself is in another group."""
    program = launch(joins(group) + trains(COUNTED_SECONDS) + EATS, tmp_path, fresh=True)
    finding = found(program)
    assert ("run-lost", "page", "oom-killer") == by(finding)
    assert LIMIT == finding.evidence["memory_limit_bytes"]
    assert finding.fix.startswith("Give the job more memory")


# -- without it -------------------------------------------------------------------------------------------------------


def test_the_process_beside_it_sees_what_the_kernel_counted(group: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
    program = start(joins(group) + READY + waits + EATS, tmp_path)
    pid(program)
    mirror_of(program)
    time.sleep(COUNTED_SECONDS)
    go.touch()
    finding = found(program)
    assert ("run-lost", "page", "oom-killer") == by(finding)
    assert LIMIT == finding.evidence["memory_limit_bytes"]


def mirror_of(program: Program, seconds: float = 60) -> int:
    """The process id of the run's mirror, once it has the lock and its handler of SIGTERM."""
    (run,) = program.folder.iterdir()
    lock = run / f"mirror.{identity.host()}.lock"
    deadline = time.monotonic() + seconds
    while not (process := lock.exists() and journal.lock_owner(lock)):
        assert time.monotonic() < deadline, f"no mirror within {seconds:.0f} s"
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("order", ["the process first", "the mirror first"])
def test_sigterm_to_all_of_a_job_is_its_end(order: str, tmp_path: Path) -> None:
    program = start(WAITS, tmp_path)
    processes = [pid(program), mirror_of(program)]
    for process in processes if order == "the process first" else processes[::-1]:
        os.kill(process, signal.SIGTERM)
    assert ("run-lost", "ticket", "job") == by(found(program))


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_of_a_process_that_went_alone_nothing_is_claimed(name: str, tmp_path: Path) -> None:
    program = start(WAITS, tmp_path)
    process = pid(program)
    mirror_of(program)
    os.kill(process, getattr(signal, f"SIG{name}"))
    finding = found(program, seconds=2)
    assert ("run-lost", "page", "unknown") == by(finding)


# -- parts ------------------------------------------------------------------------------------------------------------


def record_of(*received: tuple[int, int, str]) -> SignalRecord:
    now = time.monotonic()
    return SignalRecord([Received(number, now, process, name) for number, process, name in received])


TERM, CONT = int(signal.SIGTERM), int(signal.SIGCONT)
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "10000"}
PODS = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("expected", "signals", "environment", "now"),
    [
        ("sigterm", [(TERM, 0, "")], {}, 0),
        ("sigterm", [], {}, 0),
        ("time-limit", [(TERM, 9, "slurmstepd"), (CONT, 9, "slurmstepd")], SLURM, 9941),
        ("time-limit", [(TERM, 0, "")], SLURM, 10030),
        ("time-limit", [], SLURM, 9999),
        ("slurm", [(TERM, 9, "slurmstepd")], SLURM, 9000),
        ("slurm", [(CONT, 0, ""), (TERM, 0, "")], SLURM, 9000),
        ("slurm", [(CONT, 0, ""), (TERM, 0, "")], {"SLURM_JOB_ID": "7"}, 9999),
        ("sigterm", [(TERM, 0, "")], SLURM, 9000),
        ("sigterm", [(CONT, 8, "bash"), (TERM, 8, "bash")], SLURM, 9999),
        ("sigterm", [(TERM, 0, "")], {"SLURM_JOB_END_TIME": "1"}, 9999),
        ("sigterm", [(TERM, 0, "")], SLURM | {"SLURM_JOB_END_TIME": "soon"}, 9999),
        ("kubernetes", [(TERM, 0, "")], PODS, 0),
        ("sigterm", [(TERM, 8, "bash")], PODS, 0),
    ],
)
def test_who_told_it_to_end_is_said_where_signals_and_environment_say_it(
    expected: str, signals: list[tuple[int, int, str]], environment: dict[str, str], now: float
) -> None:
    assert expected == record_of(*signals).ended_by(environment, now)


def test_a_sigterm_of_long_ago_has_ended_nothing() -> None:
    old = SignalRecord([Received(TERM, time.monotonic() - 200, 9, "slurmstepd")])
    assert old.last_sigterm() is None
    assert "sigterm" == old.ended_by({"SLURM_JOB_ID": "7"}, 0)


def test_the_lowest_limit_above_a_process_counts(tmp_path: Path) -> None:
    inner = tmp_path / "memory" / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (inner.parent / "memory.limit_in_bytes").write_text("4096000\n")
    assert 4096000 == memory_limit("4:memory:/job/step\n", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert 0 == memory_limit("0::/\n", tmp_path)
    (tmp_path / "memory.max").write_text("8192\n")
    assert 8192 == memory_limit("0::/somewhere/else\n", tmp_path)


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Callable[[list[int | None]], str]]:
    """What is said of a writer for which the kernel counted so, look by look; the last count after its death."""
    program = start(
        "for _ in range(3): step()\nprint('ready', os.getpid(), flush=True)\nimport time; time.sleep(60)", tmp_path
    )
    pid(program)
    (run,) = program.folder.iterdir()
    (stream,) = journal.streams(run)

    def judge(counts: list[int | None]) -> str:
        seen = iter(counts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_death, "COUNT_SECONDS", 0.0)
            patch.setattr(process_death, "oom_kills", lambda _: next(seen))
            beside = DeathCauses()
            for _ in counts[2:]:
                beside.observe(stream)
            program.process.kill()
            return beside.ending(stream).ended_by

    yield judge
    program.end()


@pytest.mark.parametrize(
    ("expected", "counts"),
    [("oom-killer", [0, 0, 1]), ("oom-killer", [2, 3, 3]), ("", [0, 0, 0]), ("", [5, 5, 5]), ("", [None, None, None])],
)
def test_only_a_count_that_rose_is_the_kernels(
    expected: str, counts: list[int | None], dead: Callable[[list[int | None]], str]
) -> None:
    assert expected == dead(counts)
