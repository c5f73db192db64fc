"""Whatever happens to the program or to the machine: training is the same to the last bit, and ends the same."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.wire.frames import Lost
from tests import parts
from tests.agent import programs
from tests.agent.nursery import BARE, BEGIN, WATCHED, twins
from tests.agent.programs import bye, steps
from tests.agent.training import events

pytestmark = pytest.mark.long

TRAIN = """
run = watch(model, optimizer, scaler)
for _ in range(30):
    step()
    run.log(metric=1.0)
print(bits(), flush=True)
run.close()
"""

ON_DISK = "from pathlib import Path; from ammeter.watching import delivery; delivery.TMPFS_FOLDER = Path('/nowhere')\n"
"""Where there is no tmpfs."""


# -- the program ---------------------------------------------------------------------------------------------------

PROGRAMS: dict[str, tuple[int, str]] = {
    "is pickled, saved and copied in the middle": (
        12,
        """
        import copy, io, pickle
        run = watch(model, optimizer, scaler)
        step()
        whole = pickle.loads(pickle.dumps((model, optimizer, scaler)))
        file = io.BytesIO()
        torch.save({"model": model, "optimizer": optimizer, "scaler": scaler}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=False)
        twin = copy.deepcopy((model, optimizer, scaler))
        step(of=twin)
        step(of=whole)
        step(of=tuple(saved.values()))
        print(bits(*twin), bits(*whole), bits(*saved.values()))
        for _ in range(11):
            step()
        print(bits())
        """,
    ),
    "is interrupted in forward, in backward and in step, and goes on": (
        10,  # the step that was interrupted in its optimizer is one, too
        """
        def interrupt(*_):
            signal.raise_signal(signal.SIGINT)

        def attempt(x):
            try:
                step(x=x)
            except KeyboardInterrupt:
                print("interrupted")

        run = watch(model, optimizer, scaler)
        step()
        for hook in (
            lambda: model[1].register_forward_hook(interrupt),
            lambda: model[0].weight.register_hook(interrupt),
            lambda: optimizer.register_step_pre_hook(interrupt),
        ):
            handle = hook()
            attempt(torch.ones(6, 8))
            handle.remove()
            scaler.update(2.0**8)
            scaler._per_optimizer_states.clear()
            for _ in range(2):
                step()
        for _ in range(2):
            step()
        print(bits())
        """,
    ),
    "raises out of its loop and begins a new one": (
        8,
        """
        run = watch(model, optimizer, scaler)
        for fails in (0, 1):
            try:
                for each in range(4):
                    step()
                    1 / (each - 3 + fails)
            except ZeroDivisionError:
                print("failed")
        for _ in range(1):
            step()
        print(bits())
        """,
    ),
    "trains in a generator that is closed in the middle": (
        5,
        """
        def training():
            try:
                while True:
                    step()
                    yield losses[-1]
            finally:
                print("closed", flush=True)

        run = watch(model, optimizer, scaler)
        loop = training()
        for _ in range(5):
            next(loop)
        loop.close()
        print(bits())
        """,
    ),
    "has another default device and dtype": (
        6,
        """
        run = watch(model, optimizer, scaler)
        batch = torch.linspace(-1, 1, 48).reshape(6, 8)
        torch.set_default_device("meta")
        torch.set_default_dtype(torch.float64)
        for _ in range(6):
            step(x=batch)
        torch.set_default_device("cpu")
        print(bits())
        """,
    ),
    "asks for deterministic algorithms": (
        6,
        """
        torch.use_deterministic_algorithms(True)
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
        print(bits(), torch.are_deterministic_algorithms_enabled())
        """,
    ),
    "takes warnings for errors": (
        6,
        """
        import warnings
        warnings.simplefilter("error")
        run = watch(model, optimizer, scaler)
        for at in range(6):
            step(float("nan") if at == 3 else 1.0)
        run.log(loss=1.0)
        print(bits())
        run.close()
        """,
    ),
    "does without the garbage collector": (
        30,
        """
        import gc
        gc.disable()
        run = watch(model, optimizer, scaler)
        for _ in range(30):
            step()
        print(bits(), gc.isenabled())
        """,
    ),
    "is traced": (
        6,
        """
        seen = []

        def trace(frame, event, argument):
            if frame.f_code.co_filename == __file__:
                seen.append((frame.f_code.co_name, event, frame.f_lineno))
                return trace

        run = watch(model, optimizer, scaler)
        sys.settrace(trace)
        for _ in range(6):
            step()
        print(sys.gettrace() is trace)
        sys.settrace(None)
        print(bits(), len(seen), hash(repr(seen)) if os.environ.get("PYTHONHASHSEED") else "")
        """,
    ),
    "has little room on the stack": (
        6,
        """
        run = watch(model, optimizer, scaler)
        step()
        sys.setrecursionlimit(150)
        for _ in range(5):
            step()
        sys.setrecursionlimit(1000)
        print(bits())
        """,
    ),
    "calls itself to the end of the stack": (
        8,
        """
        def deep(level):
            try:
                deep(level + 1)
            except RecursionError:
                pass
            if level == 40:
                step()

        run = watch(model, optimizer, scaler)
        for _ in range(8):
            deep(0)
        print(bits())
        """,
    ),
    "closes its output": (
        6,
        """
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
        print(bits(), flush=True)
        sys.stdout.close()
        sys.stderr.close()
        run.close()
        """,
    ),
    "never had an output": (
        6,
        """
        out = os.dup(1)
        os.set_inheritable(out, False)
        os.closerange(0, 3)
        sys.stdin = sys.stdout = sys.stderr = None
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
        for number in (0, 1, 2):
            try:
                os.write(number, b"into somebody's file")
            except OSError as error:
                os.write(out, f"{error}\\n".encode())
        os.write(out, bits().encode())
        run.close()
        """,
    ),
    "trains two models in two threads": (
        20,
        """
        def train(of, batch):
            for _ in range(20):
                step(of=of, x=batch)

        sys.setswitchinterval(1e-5)
        two = [parts(1), parts(2)]
        runs = [watch(*each) for each in two]
        batches = [torch.randn(6, 8), torch.randn(6, 8)]
        threads = [threading.Thread(target=train, args=each) for each in zip(two, batches)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        losses.clear()
        print(bits(*two[0]), bits(*two[1]), threading.active_count())
        for run in runs:
            run.close()
        """,
    ),
    "evaluates in a second thread": (
        20,
        """
        import copy
        run = watch(model, optimizer, scaler)
        batch = torch.randn(6, 8)
        twin = copy.deepcopy(model).eval()
        over = threading.Event()

        def evaluate():
            with torch.no_grad():
                while not over.is_set():
                    twin(batch)
                    model[0](batch)

        sys.setswitchinterval(1e-5)
        thread = threading.Thread(target=evaluate)
        thread.start()
        for _ in range(20):
            step(x=batch)
        over.set()
        thread.join()
        print(bits())
        """,
    ),
    "logs from a second thread": (
        50,
        """
        run = watch(model, optimizer, scaler)
        over = threading.Event()

        def log():
            count = 0
            while not over.is_set():
                run.log(metric=count, other=torch.tensor(float(count)))
                count += 1

        sys.setswitchinterval(1e-5)
        thread = threading.Thread(target=log)
        thread.start()
        batch = torch.randn(6, 8)
        for _ in range(50):
            step(x=batch)
        over.set()
        thread.join()
        print(bits())
        """,
    ),
    "ends while a daemon thread still works": (
        6,
        """
        run = watch(model, optimizer, scaler)

        def work():
            while True:
                run.log(metric=1.0)
                time.sleep(0.0005)

        threading.Thread(target=work, daemon=True).start()
        for _ in range(6):
            step(x=torch.ones(6, 8))
        print(bits(), flush=True)
        """,
    ),
    "has a log handler that raises": (
        6,
        """
        import logging

        class Broken(logging.Handler):
            def emit(self, record):
                raise RuntimeError("the handler's own")

        logging.getLogger().addHandler(Broken())
        run = watch(model, optimizer, scaler)
        for _ in range(6):
            step()
            run.log(loss="no number")
        print(bits())
        """,
    ),
    "forks in the middle": (
        8,
        """
        run = watch(model, optimizer, scaler)
        for _ in range(4):
            step()
        child = os.fork()
        if child == 0:
            step()
            run.log(metric=1.0)
            run.close()
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        for _ in range(4):
            step()
        print(bits())
        """,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_the_same_bits_and_its_steps_are_there_when_it(name: str, tmp_path: Path) -> None:
    wanted, body = PROGRAMS[name]
    both = twins(body, tmp_path)
    assert [] == both.told()
    assert 0 == both.watched.code
    for frames in both.watched.streams():
        assert [] == events(frames, "probe.failed")
        assert wanted == len(steps(frames))
        assert bye(frames) is not None


ENDS: dict[str, tuple[int, tuple[str, str] | None, str]] = {
    "calls sys.exit in the middle of a step": (4, ("exit", ""), "optimizer.zero_grad(); sys.exit(4)"),
    "raises in the middle of backward": (
        1,
        ("exception", "ValueError: enough"),
        """
        def refuse(gradient):
            raise ValueError("enough")

        model[0].weight.register_hook(refuse)
        step()
        """,
    ),
    "ends by SIGTERM": (-15, None, "os.kill(os.getpid(), signal.SIGTERM)"),
    "handles SIGTERM": (
        5,
        ("exit", ""),
        """
        def leave(number, frame):
            print("leaves")
            sys.exit(5)

        signal.signal(signal.SIGTERM, leave)
        signal.raise_signal(signal.SIGTERM)
        """,
    ),
    "ends at once": (7, None, "os._exit(7)"),
    "ends by an interrupt in forward": (
        -2,
        ("exception", "KeyboardInterrupt"),
        """
        model[1].register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
        step()
        """,
    ),
    "is closed in another thread in the middle": (
        0,
        ("closed", ""),
        """
        thread = threading.Thread(target=run.close)
        thread.start()
        for _ in range(20):
            step(x=torch.ones(6, 8))
        thread.join()
        print(bits())
        """,
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_as_it_would_have_ended_when_it(name: str, tmp_path: Path) -> None:
    code, goodbye, body = ENDS[name]
    begin = "run = watch(model, optimizer, scaler)\nfor _ in range(5):\n    step()\nprint(bits(), flush=True)\n"
    both = twins(begin + textwrap.dedent(body), tmp_path)
    assert [] == both.told()
    assert code == both.watched.code
    frames = both.watched.stream()
    assert goodbye == bye(frames)
    assert [] == events(frames, "probe.failed")


LEFT = """
import gc


def left():
    \"\"\"What of ours is still there; nothing in a bare program.\"\"\"
    gc.collect()
    optimizers = sys.modules["torch.optim.optimizer"]
    hooks = [*optimizers._global_optimizer_pre_hooks.values(), *optimizers._global_optimizer_post_hooks.values()]
    taps = sys.modules["ammeter.torch_hooks.patch"].attached()
    files = []
    for each in os.listdir("/proc/self/fd"):
        try:
            files.append(os.readlink(f"/proc/self/fd/{each}"))
        except OSError:
            pass
    ours = [each for each in files if each.endswith((".seg", "/alive", "/shipper", ".lock", ".log"))]
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return [taps, hooks, ours, threading.active_count() - 1, children]


"""
NOTHING = "[[], [], [], 0, []]\n"

SEVERAL = {
    "one after the other": """
        for count in range(3):
            run = watch(model, optimizer, scaler)
            for _ in range(4):
                step()
            run.close()
            print(left())
        """,
    "without closing the one before": """
        runs = []
        for count in range(3):
            runs.append(watch(model, optimizer, scaler))
            for _ in range(4):
                step()
        for run in runs:
            run.close()
        print(left())
        """,
    "and forget what it watched": """
        def train():
            of = parts(7)
            watch(*of)
            for _ in range(4):
                step(of=of)

        for count in range(3):
            train()
        """,
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_notebook_may_watch_several_times(name: str, tmp_path: Path) -> None:
    both = twins(LEFT + textwrap.dedent(SEVERAL[name]) + "\nprint(bits())\n", tmp_path)
    assert [] == both.told()
    streams = both.watched.streams()
    assert [4, 4, 4] == [len(steps(frames)) for frames in streams], "a watch() of the same objects ends the one before"
    assert all(bye(frames) for frames in streams)
    assert both.watched.out.count(NOTHING) == SEVERAL[name].count("left()") * (3 if name.startswith("one") else 1)


# -- interpreters that are not like others -------------------------------------------------------------------------

SPAWNS = """
import torch.multiprocessing as multiprocessing


def child(model, optimizer, scaler, queue):
    of = model, optimizer, scaler
    step(of=of, x=torch.ones(6, 8))
    queue.put(bits(*of))


if __name__ == "__main__":
    run = watch(model, optimizer, scaler)
    step(x=torch.ones(6, 8))
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(model, optimizer, scaler, queue))
    process.start()
    process.join()
    print(queue.get(), process.exitcode)
    losses.clear()
    step(x=torch.ones(6, 8))
    print(bits())
"""


def alone(body: str, folder: Path, **environment: str) -> tuple[programs.Ended, programs.Ended]:
    """The same program bare and watched, each in an interpreter of its own."""
    both = [(programs.start_fresh(body, folder / name, begin=BEGIN + how, **environment)) for name, how in HOW.items()]
    bare, watched = (program.end() for program in both)
    assert (bare.code, bare.out, bare.err) == (watched.code, watched.out, watched.err)
    assert 0 == bare.code
    assert not watched.left
    return bare, watched


HOW = {"bare": BARE, "watched": WATCHED}


def test_a_watched_model_optimizer_and_scaler_go_to_a_spawned_process(tmp_path: Path) -> None:
    _, watched = alone(SPAWNS, tmp_path)
    assert [0, 1] == steps(watched.stream())


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONOPTIMIZE": "2"}, {"PYTHONWARNINGS": "error", "PYTHONHASHSEED": "7"}, {"PYTHONDEVMODE": "1"}],
    ids=lambda environment: next(iter(environment)),
)
def test_under_another_interpreters_settings_a_run_is_the_same(environment: dict[str, str], tmp_path: Path) -> None:
    quiet = "import gc; gc.collect()\n"
    _, watched = alone(TRAIN + quiet, tmp_path, **environment)
    assert 30 == len(steps(watched.stream()))


def test_disabled_means_that_nothing_is_imported_patched_or_written(tmp_path: Path) -> None:
    body = """
        before = set(sys.modules)
        patched = torch.amp.GradScaler.step, torch.Tensor.backward
        run = watch(model, optimizer, scaler)
        for _ in range(3):
            step()
            run.log(loss=1.0)
        run.close()
        print(sorted(name for name in set(sys.modules) - before if name.startswith(("ammeter", "torch._dynamo"))))
        print(patched == (torch.amp.GradScaler.step, torch.Tensor.backward), bits())
        """
    started = programs.start_fresh(body, tmp_path, begin=BEGIN + WATCHED, AMMETER_DISABLE="1").end()
    assert (0, "") == (started.code, started.err)
    assert started.out.startswith("['ammeter.environment', 'ammeter.environment.settings']\nTrue ")
    assert not started.folder.exists()


# -- the machine ---------------------------------------------------------------------------------------------------


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
    (line,) = both.told()
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
    assert [] == both.told()
    frames = both.watched.at(small / "journals").stream()
    assert ("closed", "") == bye(frames)
    lost = sum(frame.steps for frame in frames if isinstance(frame, Lost))
    assert 401 == len(steps(frames)) + lost
    assert tmpfs == (lost == 0)


def test_a_disk_that_stays_full_is_no_reason_to_wait(small: Path, tmp_path: Path) -> None:
    body = ON_DISK + TRAIN.replace("range(30)", "range(900)")
    both = twins(body, tmp_path, AMMETER_DIR=str(small))
    assert [] == both.told()
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
        assert [] == both.told()
        assert not both.watched.folder.exists()


def test_nearing_its_cap_the_journal_keeps_fewer_steps_and_training_the_same_bits(tmp_path: Path) -> None:
    cap = "import ammeter.journal; ammeter.journal.Journal.__init__.__kwdefaults__.update(cap_bytes=60_000)\n"
    body = ON_DISK + cap + TRAIN.replace("range(30)", "range(600)")
    body = body.replace("ammeter.journal.Journal", "ammeter.journal.writer.Journal").replace(
        "cap_bytes=60_000", "cap_bytes=60_000, segment_bytes=4_000"
    )
    both = twins(body, tmp_path)
    assert [] == both.told()
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
    both = twins(NO_PROCESS.format(get=get, set=set_) + TRAIN.replace("run.close()", "os._exit(0)"), tmp_path)
    assert [] == both.told()
    assert both.watched.out.startswith("no process\n")
    assert [] == list(both.watched.folder.rglob("hot"))
    written = steps(both.watched.stream())
    assert written == list(range(len(written)))
    assert len(written) > 5  # of the last 20 ms none is: how many those are is up to the machine


def test_where_tmpfs_is_missing_the_journal_goes_to_the_disk(tmp_path: Path) -> None:
    both = twins(ON_DISK + TRAIN, tmp_path)
    assert [] == both.told()
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
    assert [] == both.told()
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
        assert [] == both.told()
        assert 0 == both.watched.code
