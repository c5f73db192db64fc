"""A notebook: cells are run again, errors end a cell and not the program."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import journal
from ammeter.torch_hooks import patch
from ammeter.wire.frames import Bye
from tests import forked
from tests.agent.kernel import executed, printed
from tests.agent.programs import Ended, bye, steps
from tests.agent.training import stream

pytestmark = pytest.mark.long

KINDS = """
import sys, os

class Cells:
    '''Runs cells as a kind of notebook does.'''
    def __init__(self, kind):
        if kind == "ipython":
            from IPython.core.interactiveshell import InteractiveShell
            self._shell = InteractiveShell.instance()
            self._run = lambda cell: self._shell.run_cell(cell)
        else:
            import code
            self._shell = code.InteractiveInterpreter()
            self._run = lambda cell: self._shell.runsource(cell, symbol="exec")
    def run(self, *cells):
        for cell in cells:
            self._run(cell)
"""

MODEL = """
import torch, ammeter
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
"""
WATCH = "run = ammeter.watch(model, optimizer)"
TRAIN = """
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
"""
ERROR = "1 / 0"


def notebook(folder: Path, *cells: str, kind: str = "code") -> Ended:
    script = f"{KINDS}\nCells({kind!r}).run(*{list(cells)!r})\n"
    words = [sys.executable, "-c", script]
    environment = {**os.environ, "AMMETER_DIR": str(folder), "HOME": str(folder)}
    done = forked.run(words, capture_output=True, timeout=120, env=environment)
    return Ended(done.returncode, done.stdout, done.stderr, folder, left=False)


KINDS_HERE = ["code", pytest.param("ipython", marks=pytest.mark.skipif("not _has_ipython()", reason="no IPython"))]


def _has_ipython() -> bool:
    return find_spec("IPython") is not None


def _has_kernel() -> bool:
    return find_spec("ipykernel") is not None and find_spec("nbclient") is not None


def ordered(found: Ended) -> list[list[Any]]:
    return sorted(found.streams(), key=lambda frames: frames[0].started)


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_cell_that_watches_the_same_again_ends_the_first_run(kind: str, tmp_path: Path) -> None:
    found = notebook(tmp_path, MODEL, WATCH, TRAIN, WATCH, TRAIN, TRAIN, kind=kind)
    first, second = ordered(found)
    assert ("closed", "another watch() of the same parameters replaces it") == bye(first)
    assert ("exit", "") == bye(second)
    assert ([0, 1, 2], [0, 1, 2, 3, 4, 5]) == (steps(first), steps(second)), found.err


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_cell_that_makes_its_objects_anew_ends_the_run_of_the_old_ones(kind: str, tmp_path: Path) -> None:
    found = notebook(tmp_path, MODEL + WATCH, TRAIN, MODEL + WATCH, TRAIN, kind=kind)
    first, second = ordered(found)
    assert ("closed", "its optimizers are gone, and another run begins") == bye(first)
    assert ("exit", "") == bye(second)
    assert ([0, 1, 2], [0, 1, 2]) == (steps(first), steps(second)), found.err


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_an_error_in_another_cell_neither_ends_a_run_nor_fails_it(kind: str, tmp_path: Path) -> None:
    found = notebook(tmp_path, MODEL + WATCH, TRAIN, ERROR, TRAIN, ERROR, kind=kind)
    assert "ZeroDivisionError" in found.err + found.out
    (frames,) = found.streams()
    assert [0, 1, 2, 3, 4, 5] == steps(frames)
    assert ("exit", "") == bye(frames)


INTERRUPTED = (
    TRAIN
    + """
    run.log(own=1.0)
    if _ == 1:
        raise KeyboardInterrupt
"""
)


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_an_interrupted_cell_goes_on_in_the_same_run(kind: str, tmp_path: Path) -> None:
    asked = "print('steps', run.report().as_json()['summary']['steps'])"
    found = notebook(tmp_path, MODEL + WATCH, INTERRUPTED, asked, TRAIN, asked, kind=kind)
    assert "KeyboardInterrupt" in found.err + found.out
    assert ["steps 2", "steps 5"] == [line for line in found.out.splitlines() if line.startswith("steps")]
    (frames,) = found.streams()
    assert ([0, 1, 2, 3, 4], ("exit", "")) == (steps(frames), bye(frames))


ENDLESS = (
    "step = 0\nwhile True:\n" + "".join(f"    {line}\n" for line in TRAIN.strip().splitlines()) + "    step += 3\n"
)
ASKED = "found = run.report().as_json()['summary']['steps']; print(step, found, run.step + 1)"


@pytest.mark.skipif("not _has_kernel()", reason="no ipykernel")
def test_a_kernel_that_is_interrupted_goes_on_in_the_same_run(tmp_path: Path) -> None:
    make: Any = import_module("nbformat.v4")
    cells = [make.new_code_cell(source) for source in (MODEL + WATCH, ENDLESS, ASKED, TRAIN, ASKED)]
    notebook = make.new_notebook(cells=cells)
    executed(notebook, tmp_path, timeout=20, interrupt_on_timeout=True, allow_errors=True)
    assert ["KeyboardInterrupt"] == [output.ename for output in cells[1].outputs if output.output_type == "error"]
    counted, recorded, closed = map(int, printed(cells[2]).split())
    assert counted <= recorded == closed <= counted + 3
    assert [str(recorded + 3), str(closed + 3)] == printed(cells[4]).split()[1:]
    (run,) = (tmp_path / "runs").iterdir()
    (folder,) = journal.streams(run)
    frames = [entry.frame for entry in journal.read(folder)]
    assert list(range(recorded + 3)) == steps(frames)


HALF_A_STEP = """
optimizer.zero_grad()
model(torch.ones(3, 4)).square().mean().backward()
raise KeyboardInterrupt
"""


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_step_that_an_interrupt_left_half_done_is_no_mistake(kind: str, tmp_path: Path) -> None:
    asked = "print('found', [each.finding.verdict for each in run.report().findings])"
    found = notebook(tmp_path, MODEL + WATCH, TRAIN, HALF_A_STEP, TRAIN, asked, kind=kind)
    assert "found []" in found.out
    (frames,) = found.streams()
    assert [0, 1, 2, 3, 4, 5] == steps(frames)


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_person_who_thinks_between_two_cells_is_no_stall(kind: str, tmp_path: Path) -> None:
    found = notebook(tmp_path, MODEL + WATCH, TRAIN, kind=kind)
    hello = found.stream()[0]
    assert kind == "code" or "yes" == hello.environment["interactive"]


def test_an_error_that_ends_a_program_still_fails_its_run(tmp_path: Path) -> None:
    words = [sys.executable, "-c", MODEL + WATCH + TRAIN + ERROR]
    done = forked.run(words, capture_output=True, timeout=120, env={**os.environ, "AMMETER_DIR": str(tmp_path)})
    (frames,) = Ended(done.returncode, done.stdout, done.stderr, tmp_path, left=False).streams()
    assert ("exception", "ZeroDivisionError: division by zero") == bye(frames)


def _trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


def test_hooks_are_there_once_and_the_old_handle_does_nothing(tmp_path: Path) -> None:
    model, optimizer = _trained()
    first = ammeter.watch(model, optimizer, dir=tmp_path)
    _step(model, optimizer)
    once = len(patch.attached())
    second = ammeter.watch(model, optimizer, dir=tmp_path)
    assert once == len(patch.attached())
    _step(model, optimizer)
    first.log(loss=7.0)
    first.close()
    _step(model, optimizer)
    second.close()
    assert [] == patch.attached()
    assert 1 == len(steps(stream(first.id, tmp_path)[1]))
    assert 2 == len(steps(stream(second.id, tmp_path)[1]))


def test_a_new_optimizer_of_the_same_model_takes_over(tmp_path: Path) -> None:
    model, optimizer = _trained()
    first = ammeter.watch(model, optimizer, dir=tmp_path)
    second = ammeter.watch(model, torch.optim.AdamW(model.parameters()), dir=tmp_path)
    frames = stream(first.id, tmp_path)[1]
    assert ["closed"] == [frame.reason for frame in frames if isinstance(frame, Bye)]
    second.close()


def test_runs_of_other_objects_go_on_side_by_side(tmp_path: Path) -> None:
    one, other = _trained(), _trained()
    first, second = ammeter.watch(*one, dir=tmp_path), ammeter.watch(*other, dir=tmp_path)
    _step(*one)
    _step(*other)
    assert not any(isinstance(frame, Bye) for frame in stream(first.id, tmp_path)[1])
    first.close()
    second.close()
    for run in (first, second):
        assert [0] == steps(stream(run.id, tmp_path)[1])
    assert 2 == len([run_folder for run_folder in tmp_path.iterdir() if journal.streams(run_folder)])
