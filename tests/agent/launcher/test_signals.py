"""A signal reaches the command once, also one to the whole process group."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.agent.launching import AMMETER, PYTHON, launch
from tests.agent.programs import Program

pytestmark = pytest.mark.long

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
    program = launch(COUNTS, tmp_path, begin=BARE, fresh=True)
    ready(program)
    send = os.killpg if to_all else os.kill
    send(program.process.pid, getattr(signal, f"SIG{name}"))
    found = program.end()
    assert (0, f"{name}\n") == (found.code, found.out)


def test_who_kills_the_launcher_kills_the_command(tmp_path: Path) -> None:
    program = launch("print('ready', os.getpid(), flush=True)\ntime.sleep(60)", tmp_path, begin=BARE, fresh=True)
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
