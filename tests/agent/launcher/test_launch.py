"""`ammeter run -- COMMAND`: the training in it is watched, and the command ends as it would have ended."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter import journal
from ammeter.wire.frames import Event, Hello, Steps
from tests.agent.launching import AMMETER, PYTHON, WAIT, launch
from tests.agent.programs import Ended, Program, bye, steps

pytestmark = pytest.mark.long

STEPS = """
for _ in range(5):
    step()
    time.sleep(0.03)  # rows of shorter steps are written several at once
"""

ENDS: dict[str, tuple[str, int, tuple[str, str] | None]] = {
    "falls off its end": ("", 0, ("exit", "")),
    "calls sys.exit": ("sys.exit(3)", 3, ("exit", "")),
    "raises": ("raise ValueError('no such luck')", 1, ("exception", "ValueError: no such luck")),
    "is interrupted": ("signal.raise_signal(signal.SIGINT)", -2, ("exception", "KeyboardInterrupt")),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -15, ("signal", "SIGTERM")),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -9, ("lost", "killed by SIGKILL")),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", -11, ("lost", "killed by SIGSEGV")),
    "calls os._exit": ("os._exit(7)", 7, ("lost", "ended with exit code 7")),
}

SPAWNS = """
import torch.multiprocessing as multiprocessing

def child(index):
    for _ in range(3): step()

if __name__ == "__main__":
    multiprocessing.spawn(child, nprocs=2)
"""

FORKS = """
import multiprocessing
from torch.utils.data import DataLoader

def child():
    for _ in range(3): step()

for _ in DataLoader(torch.arange(8.0), batch_size=2, num_workers=2, multiprocessing_context="fork"):
    step()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
"""

GAN = """
faker = torch.nn.Linear(4, 4)
faking = torch.optim.SGD(faker.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    model(faker(torch.randn(3, 4)).detach()).square().mean().backward()
    optimizer.step()
    faking.zero_grad()
    model(faker(torch.randn(3, 4))).mean().backward()
    faking.step()
"""

PHASES = """
for _ in range(3): step()
head = torch.nn.Linear(4, 2)
second = torch.optim.SGD(head.parameters(), lr=0.01)
for _ in range(3):
    second.zero_grad()
    head(torch.randn(3, 4)).square().mean().backward()
    second.step()
"""

SCALED = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
for number in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.randn(3, 4)).square().mean()
    scaler.scale(loss * (float("inf") if number == 0 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
"""

ACCUMULATES = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
for number in range(4):
    optimizer.zero_grad()
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(3, 4)).square().mean() / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

TWICE = """
rest = torch.optim.SGD(model.parameters(), lr=0.01)  # an earlier choice that is never stepped
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for number in range(5):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(3, 4)).square().mean() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
"""

WATCHES = """
import ammeter
run = ammeter.watch(model, optimizer, name="own")
for _ in range(3): step()
"""

WATCHES_LATE = """
for _ in range(3): step()
import ammeter
run = ammeter.watch(model, optimizer, name="own")
for _ in range(3): step()
"""

NO_TORCH = "import json, sys\nprint('torch' in sys.modules, 'ammeter' in sys.modules)"

HOOKED = """
from torch.optim.optimizer import register_optimizer_step_pre_hook
register_optimizer_step_pre_hook(lambda *_: None)
for _ in range(4): step()
"""

NEW_EACH_STEP = """
for number in range(30):
    optimizer = torch.optim.SGD(torch.nn.Linear(4, 2).parameters(), lr=0.01)
    optimizer.step()
"""

ELSEWHERE = (
    """
import ammeter.watching.setup
def broken(*_, **__): raise RuntimeError("a fault of ours")
ammeter.watching.setup.watch = broken
"""
    + STEPS
    + "print('done', flush=True)"
)

ENDS_A_WORKER = """
for _ in range(5):
    step()
    time.sleep(0.03)
for _ in range(20):
    worker = os.fork()
    if worker == 0:
        time.sleep(60)
    os.kill(worker, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
print(code, flush=True)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
"""

CLEANS_UP = """
def clean(number, frame):
    print("cleaned", flush=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

signal.signal(signal.SIGTERM, clean)
for _ in range(5): step()
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""

PROFILES = """
with torch.profiler.profile() as own:
    for _ in range(30): step()
print(len(own.key_averages()) > 5)
"""

PROGRAMS: dict[str, dict[str, Any]] = {
    **{name: {"body": STEPS + WAIT + "print('done', flush=True)\n" + body} for name, (body, *_) in ENDS.items()},
    "is killed below a shell": {
        "body": STEPS + WAIT + "os.kill(os.getpid(), signal.SIGKILL)",
        "command": ["sh", "-c", f"{sys.executable} script.py; exit $?"],
    },
    "is a file of Python": {"body": STEPS, "command": ["script.py"]},
    "is a module": {"body": STEPS, "command": [sys.executable, "-m", "script"]},
    "is torchrun": {
        "body": "torch.distributed.init_process_group('gloo')\n" + STEPS + "torch.distributed.destroy_process_group()",
        "command": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "script.py"],
    },
    "spawns children": {"body": SPAWNS},
    "forks children": {"body": FORKS},
    "is a GAN": {"body": GAN},
    "has two phases": {"body": PHASES},
    "scales": {"body": SCALED},
    "scales and accumulates": {"body": ACCUMULATES},
    "never applies a step": {"body": TWICE},
    "watches itself": {"body": WATCHES},
    "watches itself late": {"body": WATCHES_LATE},
    "has no torch": {"begin": "", "body": NO_TORCH},
    "never steps": {"body": "print(model(torch.ones(3, 4)).shape)"},
    "only goes backward": {"body": "model(torch.ones(3, 4)).sum().backward()\nprint('done')"},
    "has hooks of its own": {"body": HOOKED},
    "makes an optimizer for each step": {"body": NEW_EACH_STEP},
    "meets a fault of ours": {"body": ELSEWHERE},
    "has a handler": {
        "body": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n" + STEPS + "signal.raise_signal(15)",
    },
    "ends a worker": {"body": ENDS_A_WORKER},
    "cleans up": {"body": CLEANS_UP},
    "is named": {"body": STEPS, "options": ["--name", "first try", "--project", "vision", "--preset", "light"]},
    "is disabled": {"body": STEPS + "print(os.environ.get('PYTHONPATH'))", "AMMETER_DISABLE": "1"},
    "is profiled": {"body": "for _ in range(30): step()", "options": ["--profile"]},
    "is profiled and profiles": {"body": PROFILES, "options": ["--profile"]},
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ended]]:
    """Programs by name, ended; they run two at a time, for importing torch is most of what they do."""
    folder = tmp_path_factory.mktemp("launched")
    started: dict[str, Program] = {}
    done: dict[str, Ended] = {}
    names = iter(PROGRAMS)

    def get(name: str) -> Ended:
        while name not in done:
            for other in names:
                started[other] = launch(folder=folder / other.replace(" ", "-"), **PROGRAMS[other])
                if len(started) == 2:
                    break
            first = name if name in started else next(iter(started))
            done[first] = started.pop(first).end()
        return done[name]

    yield get
    for left in started.values():
        left.end()


def hello(frames: list[Any]) -> Hello:
    return [frame for frame in frames if isinstance(frame, Hello)][-1]


def tensors(frames: list[Any]) -> list[str]:
    return [tensor.name for tensor in hello(frames).schema.tensors]


MODEL = ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("name", ENDS)
def test_a_command_ends_as_it_would_have_ended_and_its_journal_says_how(
    name: str, ended: Callable[[str], Ended]
) -> None:
    _, code, goodbye = ENDS[name]
    found = ended(name)
    assert (code, "done\n", False) == (found.code, found.out, found.left)
    assert goodbye == bye(found.stream())
    assert 0 == steps(found.stream())[0]
    assert 1 == found.err.count("ammeter: watching as run ")


def test_a_run_that_is_lost_is_told_at_the_end_with_the_way_to_its_report(ended: Callable[[str], Ended]) -> None:
    found = ended("is killed")
    (run,) = found.folder.iterdir()
    last = found.err.splitlines()[-1]
    assert last.startswith("ammeter: Run lost after step ")
    assert last.endswith(f"(run-lost, page); read it with: ammeter report {run}")
    assert [] == list(run.glob("witness.*"))


def test_nothing_wrong_is_told_as_well(ended: Callable[[str], Ended]) -> None:
    assert "ammeter: nothing wrong was found; read it with: ammeter report " in ended("falls off its end").err


def test_a_shell_in_between_hands_the_signal_on_as_a_number(ended: Callable[[str], Ended]) -> None:
    found = ended("is killed below a shell")
    assert (137, ("lost", "killed by SIGKILL")) == (found.code, bye(found.stream()))


@pytest.mark.parametrize("name", ["is a file of Python", "is a module"])
def test_a_script_may_be_named_in_any_way(name: str, ended: Callable[[str], Ended]) -> None:
    found = ended(name)
    assert 0 == found.code
    assert MODEL == tensors(found.stream())


def test_the_ranks_of_torchrun_are_one_run(ended: Callable[[str], Ended]) -> None:
    found = ended("is torchrun")
    assert 0 == found.code, found.err
    assert [(0, 2), (1, 2)] == sorted((hello(each).rank, hello(each).world_size) for each in found.streams())
    assert 1 == len(list(found.folder.iterdir()))
    assert 1 == found.err.count("ammeter: watching as run ")


def test_children_that_train_are_streams_of_the_run(ended: Callable[[str], Ended]) -> None:
    found = ended("spawns children")
    assert (0, 2) == (found.code, len(found.streams()))
    assert 1 == len(list(found.folder.iterdir()))


def test_a_forked_child_that_trains_is_watched_and_workers_that_load_data_are_not(
    ended: Callable[[str], Ended],
) -> None:
    found = ended("forks children")
    assert (0, False) == (found.code, found.left), found.err
    assert [[0, 1, 2], [0, 1, 2, 3]] == sorted(steps(each) for each in found.streams())
    assert {("exit", "")} == {bye(each) for each in found.streams()}


def test_two_optimizers_that_take_turns_are_one_step(ended: Callable[[str], Ended]) -> None:
    frames = ended("is a GAN").stream()
    assert [0, 1, 2, 3] == steps(frames)
    names = tensors(frames)
    assert 6 == len(names)
    assert {"model0.0.weight", "model1.weight"} <= set(names)


def test_an_optimizer_that_appears_later_is_watched_from_then_on(ended: Callable[[str], Ended]) -> None:
    frames = ended("has two phases").stream()
    assert [0, 1, 2, 3, 4, 5] == steps(frames)
    assert [*MODEL, "model1.weight", "model1.bias"] == tensors(frames)


def test_with_a_scaler_the_first_step_is_seen_even_if_it_is_skipped(ended: Callable[[str], Ended]) -> None:
    frames = ended("scales").stream()
    assert [0, 1, 2, 3, 4, 5] == steps(frames)
    events = [(frame.name, frame.step) for frame in frames if isinstance(frame, Event)]
    assert ("step.skipped", 0) in events
    assert 1 == [name for name, _ in events].count("step.skipped")
    assert ("scaler.seen", 0) in events


def test_the_first_scaled_loss_is_neither_told_as_unscaled_nor_taken_for_the_loss(
    ended: Callable[[str], Ended],
) -> None:
    frames = ended("scales and accumulates").stream()
    assert [] == [frame.name for frame in frames if isinstance(frame, Event) and frame.name.startswith("usage.")]
    place = 4 * hello(frames).schema.scalars.index("loss")
    losses = [struct.unpack_from("<f", frame.values, place)[0] for frame in frames if isinstance(frame, Steps)]
    assert 4 == len(losses)
    assert all(0 < loss < 10 for loss in losses)


def test_a_run_that_skips_every_step_is_seen_although_no_optimizer_ever_steps(ended: Callable[[str], Ended]) -> None:
    frames = ended("never applies a step").stream()
    assert 3 <= sum(isinstance(frame, Event) and frame.name == "step.skipped" for frame in frames)
    assert MODEL == tensors(frames)


def test_a_program_that_watches_itself_is_left_to_it(ended: Callable[[str], Ended]) -> None:
    found = ended("watches itself")
    assert (0, "own", [0, 1, 2]) == (found.code, hello(found.stream()).name, steps(found.stream()))
    assert "ammeter: watching" not in found.err


def test_a_program_that_watches_itself_late_takes_over(ended: Callable[[str], Ended]) -> None:
    streams = sorted(ended("watches itself late").streams(), key=lambda frames: hello(frames).started)
    assert [("closed", ""), ("exit", "")] == [bye(frames) for frames in streams]
    assert ["script", "own"] == [hello(frames).name for frames in streams]
    assert [[0, 1, 2], [0, 1, 2]] == [steps(frames) for frames in streams]


def test_a_python_without_torch_imports_nothing_of_ours(ended: Callable[[str], Ended]) -> None:
    found = ended("has no torch")
    assert (0, "False False\n") == (found.code, found.out)
    assert [] == list(found.folder.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("has no torch", "never imported torch"),
        ("never steps", f"imported torch {torch.__version__}, but no optimizer of torch made a step"),
    ],
)
def test_where_nothing_trains_that_is_said(name: str, said: str, ended: Callable[[str], Ended]) -> None:
    assert f"ammeter: nothing was watched: {sys.executable} script.py {said}\n" == ended(name).err


def test_a_program_that_goes_backward_and_never_steps_is_a_run_without_steps(ended: Callable[[str], Ended]) -> None:
    found = ended("only goes backward")
    assert (0, "done\n", []) == (found.code, found.out, steps(found.stream()))


def test_a_program_with_hooks_on_every_optimizer_is_watched_from_the_first_step_on(
    ended: Callable[[str], Ended],
) -> None:
    found = ended("has hooks of its own")
    assert (0, [0, 1, 2, 3]) == (found.code, steps(found.stream()))


def test_the_first_step_has_its_loss_and_its_norm(ended: Callable[[str], Ended]) -> None:
    """Watching begins in the middle of the first backward pass."""
    frames = ended("has hooks of its own").stream()
    first = next(frame for frame in frames if isinstance(frame, Steps))
    assert 0 == first.step
    for name in ("loss", "grad_norm"):
        place = 4 * hello(frames).schema.scalars.index(name)
        assert 0 < struct.unpack_from("<f", first.values, place)[0] < 10


def test_a_program_that_makes_optimizers_all_the_time_does_not_grow_its_journal(ended: Callable[[str], Ended]) -> None:
    found = ended("makes an optimizer for each step")
    assert 0 == found.code
    assert len(tensors(found.stream())) <= 2 * 9


def test_a_fault_of_ours_is_one_line_and_the_program_goes_on(ended: Callable[[str], Ended]) -> None:
    found = ended("meets a fault of ours")
    assert (0, "done\n") == (found.code, found.out)
    assert "ammeter: this run is not watched (RuntimeError: a fault of ours); the training continues" in found.err
    assert "Traceback" not in found.err


def test_a_handler_of_the_program_is_the_only_one(ended: Callable[[str], Ended]) -> None:
    found = ended("has a handler")
    assert (4, ("exit", "")) == (found.code, bye(found.stream()))


def test_a_worker_that_is_ended_leaves_no_note_in_the_runs_name(ended: Callable[[str], Ended]) -> None:
    found = ended("ends a worker")
    assert (-9, "-15\n", ("lost", "killed by SIGKILL")) == (found.code, found.out, bye(found.stream()))


def test_a_program_that_cleans_up_at_sigterm_does_so_and_is_not_lost(ended: Callable[[str], Ended]) -> None:
    found = ended("cleans up")
    assert (-15, "cleaned\n", ("signal", "SIGTERM")) == (found.code, found.out, bye(found.stream()))


def test_what_the_run_is_called_is_said_on_the_command_line(ended: Callable[[str], Ended]) -> None:
    found = hello(ended("is named").stream())
    assert ("first try", "vision") == (found.name, found.project)


def test_disabled_means_that_nothing_of_ours_is_there(ended: Callable[[str], Ended]) -> None:
    found = ended("is disabled")
    assert (0, f"{os.environ.get('PYTHONPATH')}\n", "") == (found.code, found.out, found.err)
    assert not found.folder.exists()


def profiled(frames: list[Any]) -> dict[str, Any]:
    (found,) = [frame.data for frame in frames if isinstance(frame, Event) and frame.name == "kernels.profiled"]
    return found


def test_the_kernels_of_five_steps_are_named(ended: Callable[[str], Ended]) -> None:
    found = profiled(ended("is profiled").stream())
    assert 5 == found["steps"]
    kernels = {each["name"]: each for each in found["kernels"]}
    assert len(kernels) <= 30
    assert 10 == kernels["aten::addmm"]["calls"]
    assert "cpu" == kernels["aten::addmm"]["device"]
    assert 0 < kernels["aten::addmm"]["seconds"] < 1


def test_a_profiler_of_the_program_is_left_alone(ended: Callable[[str], Ended]) -> None:
    found = ended("is profiled and profiles")
    assert (0, "True\n") == (found.code, found.out), found.err
    assert (0, "the program has a profiler of its own") == (
        profiled(found.stream())["steps"],
        profiled(found.stream())["refused"],
    )


BROKEN_OFF = {
    "falls off its end": "nothing wrong was found;",
    "raises": "the program raised ValueError: no such luck after step 4; nothing else wrong was found;",
    "is interrupted": "the program was interrupted after step 4; nothing else wrong was found;",
}


@pytest.mark.parametrize("name", BROKEN_OFF)
def test_the_last_line_says_how_the_training_was_broken_off(name: str, ended: Callable[[str], Ended]) -> None:
    lines = [line for line in ended(name).err.splitlines() if line.startswith("ammeter: ")]
    assert 2 == len(lines)
    assert lines[1].startswith(f"ammeter: {BROKEN_OFF[name]} read it with: ammeter report ")


def test_the_last_line_says_that_the_command_was_ended_by_sigterm(ended: Callable[[str], Ended]) -> None:
    last = ended("is terminated").err.splitlines()[-1]
    assert last.startswith("ammeter: Run ended by SIGTERM after step ")  # its last rows went with it
    assert "(run-lost, ticket); read it with: ammeter report " in last


# -- signals ----------------------------------------------------------------------------------------------------------

COUNTS = """
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("TERM"))
signal.signal(signal.SIGUSR1, lambda *_: heard.append("USR1"))
signal.signal(signal.SIGINT, lambda *_: heard.append("INT"))
print("ready", os.getpid(), flush=True)
while not heard: time.sleep(0.01)
time.sleep(0.5)
print(*heard, flush=True)
"""
BARE = "import os, signal, sys, time\n"


def ready(program: Program) -> int:
    """The process id of the script, once it listens."""
    assert program.process.stdout is not None
    return int(program.process.stdout.readline().split()[1])


@pytest.mark.parametrize("name", ["TERM", "USR1", "INT"])
@pytest.mark.parametrize("to_all", [False, True], ids=["one", "group"])
def test_a_signal_reaches_the_command_once(name: str, to_all: bool, tmp_path: Path) -> None:
    program = launch(COUNTS, tmp_path, begin=BARE)
    ready(program)
    send = os.killpg if to_all else os.kill
    send(program.process.pid, getattr(signal, f"SIG{name}"))
    found = program.end()
    assert (0, f"{name}\n") == (found.code, found.out)


def test_who_kills_the_launcher_kills_the_command(tmp_path: Path) -> None:
    program = launch("print('ready', os.getpid(), flush=True)\ntime.sleep(60)", tmp_path, begin=BARE)
    script = ready(program)
    program.process.kill()
    found = program.end()
    assert (-9, False) == (found.code, found.left)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{script}").exists() and "Z" not in Path(f"/proc/{script}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_in_a_terminal_interrupts_the_command_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BARE + COUNTS)
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        [*AMMETER, "--", *PYTHON],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(other)
    said = _read(terminal, "ready")
    os.write(terminal, b"\x03")
    said += _read(terminal, "nothing was watched")
    assert 0 == process.wait(60)
    os.close(terminal)
    assert 1 == said.count("INT\r\n")


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read(terminal: int, until: str, seconds: float = 30) -> str:
    said, deadline = "", time.monotonic() + seconds
    while until not in said:
        assert time.monotonic() < deadline, said
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 4096).decode()
    return said


# -- calls ------------------------------------------------------------------------------------------------------------


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AMMETER, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("words", "environment", "code", "said"),
    [
        ((), {}, 2, "the command is missing; use: ammeter run -- python train.py"),
        (("--", "no-such-program"), {}, 127, "'no-such-program' cannot be started: No such file or directory"),
        (
            ("--", "/etc/passwd"),
            {},
            126,
            "'/etc/passwd' cannot be started: Permission denied; try: chmod +x",
        ),
        (("--url", "ftp://x", "--", "true"), {}, 2, "url is 'ftp://x'; use http:// or https://"),
        (("--", "true"), {"AMMETER_BUDGET": "lots"}, 2, "AMMETER_BUDGET is 'lots'"),
        (("--budget", "7", "--", "true"), {}, 2, "budget is 7.0"),
    ],
)
def test_a_wrong_call_names_the_remedy(
    words: tuple[str, ...], environment: dict[str, str], code: int, said: str
) -> None:
    done = call(*words, **environment)
    assert code == done.returncode, done.stderr
    assert said in done.stderr


def test_the_command_keeps_its_input_its_descriptors_and_its_arguments(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"inherited")
    os.close(write)
    script = f"import os, sys; print(sys.stdin.read(), os.read({read}, 99).decode(), sys.argv[1:])"
    done = subprocess.run(
        [*AMMETER, "--", sys.executable, "-c", script, "--name", "--", "-x"],
        input="typed",
        capture_output=True,
        text=True,
        timeout=60,
        pass_fds=(read,),
    )
    os.close(read)
    assert "typed inherited ['--name', '--', '-x']\n" == done.stdout, done.stderr


def test_a_sitecustomize_of_the_user_has_its_turn(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("OWN = 'here'\n")
    script = "import sitecustomize, sys; print(sitecustomize.OWN, [each for each in sys.path if 'launch' in each])"
    done = subprocess.run(
        [*AMMETER, "--", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
    )
    assert "here []\n" == done.stdout, done.stderr


def test_a_sitecustomize_of_the_user_that_fails_is_told_by_python_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    done = subprocess.run(
        [*AMMETER, "--", sys.executable, "-c", "print('runs')"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
    )
    bare = subprocess.run(
        [sys.executable, "-c", "print('runs')"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))},
    )
    assert ("runs\n", bare.stdout) == (done.stdout, done.stdout)
    assert bare.stderr.splitlines()[-1] in done.stderr or "no_such_module" in done.stderr


def test_an_old_life_of_the_same_run_is_not_this_commands(tmp_path: Path) -> None:
    run = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    first = launch(STEPS + WAIT + "os.kill(os.getpid(), 9)", tmp_path / "a", AMMETER_RUN_ID=run).end()
    assert ("lost", "killed by SIGKILL") == bye(first.stream())
    again = launch(STEPS, tmp_path / "b", AMMETER_RUN_ID=run, AMMETER_DIR=str(first.folder)).end()
    assert "nothing wrong" in again.err or "run-lost" in again.err
    assert 2 == len(journal.streams(first.folder / run))


# -- the last lines ---------------------------------------------------------------------------------------------------

SAVES = """
folder = {folder!r}
step()
open(folder + "/run.pt", "w").close()
os.chmod(folder + "/run.pt", {mode})
torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict()), folder + "/run.pt")
step()
"""

OTHERS = """
from ammeter.probes.checkpoint import exposure
exposure.accounts = lambda: (exposure.Account(54321),)  # this machine may have nobody else
"""


def test_that_others_can_read_the_checkpoints_is_noted_once_for_a_project_and_is_not_what_was_found(
    tmp_path: Path,
) -> None:
    place = tempfile.mkdtemp(dir="/tmp")
    os.chmod(place, 0o755)
    ends = []
    for _ in range(2):
        ends.append(launch(OTHERS + SAVES.format(folder=place, mode=0o644), tmp_path).end().err.splitlines()[1:])
    ends.append(launch(OTHERS + SAVES.format(folder=place, mode=0o666), tmp_path).end().err.splitlines()[1:])
    shutil.rmtree(place)
    assert [2, 1, 1] == [len(each) for each in ends], ends
    assert ["ammeter: nothing wrong was found"] * 2 == [each[0].partition(";")[0] for each in ends[:2]]
    assert ends[0][1].startswith(f"ammeter: note, printed once: The checkpoint {place}/run.pt, saved at step")
    assert ends[2][0].startswith(
        "ammeter: Other users can read and replace the checkpoints (checkpoint-exposed, ticket);"
    )
