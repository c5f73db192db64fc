"""`ammeter run -- COMMAND` watches the training in any program that starts a Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ammeter.wire.frames import Event
from tests.agent.launcher.launched import MODEL, STEPS, hello, tensors
from tests.agent.programs import Ended, bye, steps

pytestmark = pytest.mark.long

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

ELSEWHERE = (
    """
import ammeter.watching.setup
def broken(*_, **__): raise RuntimeError("a fault of ours")
ammeter.watching.setup.watch = broken
"""
    + STEPS
    + "print('done', flush=True)"
)

PROFILES = """
with torch.profiler.profile() as own:
    for _ in range(30): step()
print(len(own.key_averages()) > 5)
"""

PROGRAMS: dict[str, dict[str, Any]] = {
    "is a file of Python": {"body": STEPS, "command": ["script.py"], "fresh": True},
    "is a module": {"body": STEPS, "command": [sys.executable, "-m", "script"]},
    "is torchrun": {
        "body": "torch.distributed.init_process_group('gloo')\n" + STEPS + "torch.distributed.destroy_process_group()",
        "command": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "script.py"],
        "levels": 2,
    },
    "spawns children": {"body": SPAWNS, "levels": 2},
    "forks children": {"body": FORKS},
    "watches itself": {"body": WATCHES},
    "watches itself late": {"body": WATCHES_LATE},
    "has no torch": {"begin": "", "body": NO_TORCH, "fresh": True},
    "never steps": {"body": "print(model(torch.ones(3, 4)).shape)"},
    "only goes backward": {"body": "model(torch.ones(3, 4)).sum().backward()\nprint('done')"},
    "meets a fault of ours": {"body": ELSEWHERE},
    "is named": {"body": STEPS, "options": ["--name", "first try", "--project", "vision", "--preset", "light"]},
    "is disabled": {"body": STEPS + "print(os.environ.get('PYTHONPATH'))", "AMMETER_DISABLE": "1", "fresh": True},
    "is profiled": {"body": "for _ in range(30): step()", "options": ["--profile"]},
    "is profiled and profiles": {"body": PROFILES, "options": ["--profile"]},
}


@pytest.mark.parametrize("name", ["is a file of Python", "is a module"])
def test_a_script_may_be_named_in_any_way(name: str, ended: Callable[[str], Ended]) -> None:
    found = ended(name)
    assert 0 == found.code
    assert MODEL == tensors(found.stream())


def test_the_ranks_of_torchrun_are_one_run(ended: Callable[[str], Ended]) -> None:
    found = ended("is torchrun")
    assert 0 == found.code, found.err
    assert [(0, 2), (1, 2)] == sorted((hello(frames).rank, hello(frames).world_size) for frames in found.streams())
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
    assert [[0, 1, 2], [0, 1, 2, 3]] == sorted(steps(frames) for frames in found.streams())
    assert {("exit", "")} == {bye(frames) for frames in found.streams()}


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


def test_a_fault_of_ours_is_one_line_and_the_program_goes_on(ended: Callable[[str], Ended]) -> None:
    found = ended("meets a fault of ours")
    assert (0, "done\n") == (found.code, found.out)
    assert "ammeter: this run is not watched (RuntimeError: a fault of ours); the training continues" in found.err
    assert "Traceback" not in found.err


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
    kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
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
