"""Training is the same when storage is read-only, full or gone."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.wire.frames import Lost
from tests import parts
from tests.agent.nursery import twins
from tests.agent.programs import bye, steps
from tests.agent.watching.fail_open import ON_DISK, TRAIN

pytestmark = pytest.mark.long


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(words).returncode:
        parts.missing("a tmpfs can only be mounted by root who has the right to; run this test in such a container")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_folder_that_is_read_only_leaves_training_unwatched_with_one_line(small: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    both = twins(TRAIN, tmp_path, AMMETER_DIR=str(small / "journals"))
    (line,) = both.extra_lines()
    assert "ammeter cannot watch this run (OSError: [Errno 30] Read-only file system" in line


@pytest.mark.parametrize("tmpfs", [True, False])
def test_a_disk_that_is_full_leaves_training_as_it_is_and_what_is_lost_is_counted(
    tmpfs: bool, small: Path, tmp_path: Path
) -> None:
    filler = small / "filler"
    body = f"open({str(filler)!r}, 'wb').write(b'x' * (2**20 - 60_000))\n{'' if tmpfs else ON_DISK}"
    body += TRAIN.replace("range(30)", "range(400)").replace(
        "(model, optimizer, scaler)", "(*parts_of_this_run, preset='full')"
    )
    body = body.replace("run.close()", f"os.unlink({str(filler)!r})\nstep()\nrun.close()")
    both = twins(body, tmp_path, AMMETER_DIR=str(small / "journals"))
    assert [] == both.extra_lines()
    frames = both.watched.at(small / "journals").stream()
    assert ("closed", "") == bye(frames)
    lost = sum(frame.steps for frame in frames if isinstance(frame, Lost))
    assert 401 == len(steps(frames)) + lost
    assert tmpfs == (lost == 0)


def test_a_disk_that_stays_full_is_no_reason_to_wait(small: Path, tmp_path: Path) -> None:
    body = ON_DISK + TRAIN.replace("range(30)", "range(900)")
    both = twins(body, tmp_path, AMMETER_DIR=str(small))
    assert [] == both.extra_lines()
    assert 0 < len(steps(both.watched.at(small).stream())) <= 900


def test_a_journal_that_vanishes_in_the_middle_leaves_training_as_it_is(tmp_path: Path) -> None:
    for tmpfs in (True, False):
        body = ("" if tmpfs else ON_DISK) + TRAIN.replace("    run.log", "    vanish()\n    run.log")
        vanish = """
            import shutil

            def vanish():
                shutil.rmtree(os.environ["AMMETER_DIR"], ignore_errors=True)

            """
        both = twins(textwrap.dedent(vanish) + body, tmp_path / str(tmpfs))
        assert [] == both.extra_lines()
        assert not both.watched.folder.exists()


def test_nearing_its_cap_the_journal_keeps_fewer_steps_and_training_the_same_bits(tmp_path: Path) -> None:
    cap = "import ammeter.journal; ammeter.journal.Journal.__init__.__kwdefaults__.update(cap_bytes=60_000)\n"
    body = ON_DISK + cap + TRAIN.replace("range(30)", "range(600)")
    body = body.replace("ammeter.journal.Journal", "ammeter.journal.writer.Journal").replace(
        "cap_bytes=60_000", "cap_bytes=60_000, segment_bytes=4_000"
    )
    both = twins(body, tmp_path)
    assert [] == both.extra_lines()
    frames = both.watched.stream()
    lost = sum(frame.steps for frame in frames if isinstance(frame, Lost) and frame.reason == "journal-cap")
    assert 600 == len(steps(frames)) + lost
    assert lost > 100
    assert sum(path.stat().st_size for path in both.watched.folder.rglob("*.seg")) < 60_000 + 2 * 4_000
    assert ("closed", "") == bye(frames)


NO_PROCESS = """
import ctypes, resource

# Who may raise limits is not held by them: give that up, and be another user as far as processes are counted.
libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
sets = (ctypes.c_uint32 * 6)()
os.setresuid(65534, 0, 0)
assert libc.syscall(ctypes.c_long({get}), header, sets) == 0
sets[0] &= ~(1 << 24 | 1 << 21)
assert libc.syscall(ctypes.c_long({set}), header, sets) == 0
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
try:
    os.fork() or os._exit(0)
except BlockingIOError:
    print("no process")
"""


def test_where_no_process_can_be_started_the_journal_goes_to_the_disk_at_once(tmp_path: Path) -> None:
    if os.geteuid() != 0 or os.uname().machine not in ("x86_64", "aarch64"):
        parts.missing("the limit is set by root, by the numbers of system calls that are known here")
    get, set_ = (125, 126) if os.uname().machine == "x86_64" else (90, 91)
    train = TRAIN.replace("range(30)", "range(600)").replace("run.close()", "os._exit(0)")
    both = twins(NO_PROCESS.format(get=get, set=set_) + train, tmp_path)
    assert [] == both.extra_lines()
    assert both.watched.out.startswith("no process\n")
    assert [] == list(both.watched.folder.rglob("hot"))
    written = steps(both.watched.stream())
    assert written == list(range(len(written)))
    assert len(written) > 5  # of the last 0.1 s none is: how many those are is up to the machine


def test_where_tmpfs_is_missing_the_journal_goes_to_the_disk(tmp_path: Path) -> None:
    both = twins(ON_DISK + TRAIN, tmp_path)
    assert [] == both.extra_lines()
    assert 30 == len(steps(both.watched.stream()))
    assert [] == [*both.watched.folder.rglob("hot"), *both.watched.folder.rglob("mirror*")]


@pytest.mark.parametrize("at", [-1, 9], ids=["before it is used", "in the middle"])
def test_a_tmpfs_that_fills_up_costs_no_row(at: int, small: Path, tmp_path: Path) -> None:
    filler = str(small / "filler")
    hot = "from pathlib import Path; from ammeter.watching import delivery\n"
    hot += f"delivery.TMPFS_FOLDER = Path({str(small)!r}); delivery.MIN_FREE_TMPFS_BYTES = 0\n"
    begin = """
        def fill(path, mode="wb"):
            with open(path, mode, buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    print("full")

        """
    hot += f"if os.path.exists({filler!r}):\n    os.unlink({filler!r})\n"
    before = f"if {at} < 0:\n    fill({filler!r})\n"
    full = f"    if each == {at}:\n        fill({filler!r})\n    step()\n"
    loop = before + TRAIN.replace("for _ in", "for each in").replace("    step()\n", full)
    both = twins(hot + textwrap.dedent(begin) + loop, tmp_path)
    assert [] == both.extra_lines()
    assert list(range(30)) == steps(both.watched.stream())


def test_a_descriptor_that_the_program_closes_and_uses_again_is_not_written_to(tmp_path: Path) -> None:
    body = """
        run = watch(model, optimizer, scaler)
        for _ in range(5):
            step()
        os.closerange(3, 64)
        mine = [open(f"mine{number}", "w+") for number in range(40)]
        for _ in range(30):
            step()
            time.sleep(0.001)
        run.close()
        print([os.path.getsize(f"mine{number}") for number in range(40)])
        print([os.fstat(each.fileno()).st_size for each in mine])
        print(bits())
        """
    for tmpfs in (True, False):
        both = twins(("" if tmpfs else ON_DISK) + textwrap.dedent(body), tmp_path / str(tmpfs))
        assert [] == both.extra_lines()
        assert 0 == both.watched.code
