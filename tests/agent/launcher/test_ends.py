"""A command ends as it would end without `ammeter run`; journal and last line say how."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.launcher.launched import STEPS
from tests.agent.launching import WAIT
from tests.agent.programs import Ended, bye, steps

pytestmark = pytest.mark.long

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


PROGRAMS: dict[str, dict[str, Any]] = {
    **{name: {"body": STEPS + WAIT + "print('done', flush=True)\n" + body} for name, (body, *_) in ENDS.items()},
    "is killed below a shell": {
        "body": STEPS + WAIT + "os.kill(os.getpid(), signal.SIGKILL)",
        "command": ["sh", "-c", f"{sys.executable} script.py; exit $?"],
    },
    "has a handler": {
        "body": "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\n" + STEPS + "signal.raise_signal(15)",
    },
    "ends a worker": {"body": ENDS_A_WORKER},
    "cleans up": {"body": CLEANS_UP},
}


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
    last = ended("falls off its end").err
    assert re.search(
        r"^ammeter: nothing wrong was found; \d+ verdicts not judged: too few readings; read it with: ammeter report ",
        last,
        re.MULTILINE,
    )


def test_a_shell_in_between_hands_the_signal_on_as_a_number(ended: Callable[[str], Ended]) -> None:
    found = ended("is killed below a shell")
    assert (137, ("lost", "killed by SIGKILL")) == (found.code, bye(found.stream()))


def test_a_handler_of_the_program_is_the_only_one(ended: Callable[[str], Ended]) -> None:
    found = ended("has a handler")
    assert (4, ("exit", "")) == (found.code, bye(found.stream()))


def test_a_worker_that_is_ended_leaves_no_note_in_the_runs_name(ended: Callable[[str], Ended]) -> None:
    found = ended("ends a worker")
    assert (-9, "-15\n", ("lost", "killed by SIGKILL")) == (found.code, found.out, bye(found.stream()))


def test_a_program_that_cleans_up_at_sigterm_does_so_and_is_not_lost(ended: Callable[[str], Ended]) -> None:
    found = ended("cleans up")
    assert (-15, "cleaned\n", ("signal", "SIGTERM")) == (found.code, found.out, bye(found.stream()))


BROKEN_OFF = {
    "falls off its end": "nothing wrong was found;",
    "raises": "the program raised ValueError: no such luck after step 4; nothing else wrong was found;",
    "is interrupted": "the program was interrupted after step 4; nothing else wrong was found;",
}


@pytest.mark.parametrize("name", BROKEN_OFF)
def test_the_last_line_says_how_the_training_was_broken_off(name: str, ended: Callable[[str], Ended]) -> None:
    lines = [line for line in ended(name).err.splitlines() if line.startswith("ammeter: ")]
    assert 2 == len(lines)
    assert re.match(
        rf"ammeter: {BROKEN_OFF[name]} \d+ verdicts not judged: too few readings; read it with: ammeter report ",
        lines[1],
    )


def test_the_last_line_says_that_the_command_was_ended_by_sigterm(ended: Callable[[str], Ended]) -> None:
    last = ended("is terminated").err.splitlines()[-1]
    assert last.startswith("ammeter: Run ended by SIGTERM after step ")  # its last rows went with it
    assert "(run-lost, ticket); read it with: ammeter report " in last
