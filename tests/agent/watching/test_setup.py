"""A watched program ends as a bare one does, its journal records the end, and nothing is left."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.recording.row_queue import BATCH_SECONDS
from ammeter.torch_hooks.targets import Watched
from ammeter.watching import run_facts
from tests import parts
from tests.agent import programs
from tests.agent.programs import Ended, bye, steps
from tests.agent.training import Recipe, stream, train

pytestmark = pytest.mark.long

ENDS: dict[str, tuple[str, int, tuple[str, str] | None]] = {
    "falls off its end": ("", 0, ("exit", "")),
    "calls close": ("run.close(); run.close(); run.log(loss=1)", 0, ("closed", "")),
    "calls sys.exit": ("sys.exit(3)", 3, ("exit", "")),
    "raises": ("raise ValueError('no such luck')", 1, ("exception", "ValueError: no such luck")),
    "raises what cannot be told": (
        "class Mute(Exception):\n    def __str__(self): raise RuntimeError\n\nraise Mute",
        1,
        ("exception", "Mute: <exception str() failed>"),
    ),
    "raises what UTF-8 cannot say": ("raise ValueError('\\ud800')", 1, ("exception", "ValueError: ?")),
    "is interrupted": ("signal.raise_signal(signal.SIGINT)", -2, ("exception", "KeyboardInterrupt")),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -15, None),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -9, None),
    "calls os._exit": ("os._exit(7)", 7, None),
}

MAIN = "if __name__ == '__main__':\n"

CHILD = """
import torch.multiprocessing as multiprocessing


def child(index=0):
    run = ammeter.watch(model, optimizer)
    step()
    if index == 1:
        raise ValueError("a child's own")
    print("child done", flush=True)

"""

FORKS = """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
"""

WORKERS = """
from torch.utils.data import DataLoader

run = ammeter.watch(model, optimizer)
for batch in DataLoader(torch.arange(8.0), batch_size=2, num_workers=2, multiprocessing_context="fork"):
    step()
print("done", flush=True)
"""

FORKED = """
run = ammeter.watch(model, optimizer)
step()
child = os.fork()
step()
if child == 0:
    run.close()
    sys.exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
step()
"""

UNWATCHED = programs.BEGIN.replace("run = ammeter.watch(model, optimizer)\n", "")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Programs by name, ended; they run two at a time, for importing torch is most of what they do."""
    folder = tmp_path_factory.mktemp("programs")
    two_steps = f"import time\nstep()\ntime.sleep({2 * BATCH_SECONDS})\nstep()\nprint('done', flush=True)\n"
    wanted = {name: (programs.BEGIN, two_steps + body) for name, (body, *_) in ENDS.items()}
    wanted["spawns children"] = (UNWATCHED, CHILD + MAIN + "    multiprocessing.spawn(child, nprocs=2)\n")
    wanted["forks children"] = (UNWATCHED, CHILD + FORKS)
    wanted["loads data in workers"] = (UNWATCHED, WORKERS)
    wanted["forks itself"] = (UNWATCHED, FORKED)
    started: dict[str, programs.Program] = {}
    done: dict[str, Ended] = {}
    names = iter(wanted)

    def get(name: str) -> Ended:
        while name not in done:
            for other in names:
                (begin, body), levels = wanted[other], int(other == "spawns children")
                started[other] = programs.start(body, folder / other.replace(" ", "-"), begin=begin, levels=levels)
                if len(started) == 2:
                    break
            first = name if name in started else next(iter(started))
            done[first] = started.pop(first).end()
        return done[name]

    yield get
    for left in started.values():
        left.end()


@pytest.mark.parametrize("name", ENDS)
def test_a_watched_program_ends_as_it_would_have_ended_and_says_how(name: str, ended: Any) -> None:
    _, code, goodbye = ENDS[name]
    found = ended(name)
    assert (code, "done\n", False) == (found.code, found.out, found.left)
    assert "ammeter" not in found.err.replace(str(found.folder.parent), "").lower()
    assert ("Traceback" in found.err) == (goodbye is not None and goodbye[0] == "exception")
    frames = found.stream()
    assert goodbye == bye(frames)
    rows = steps(frames)
    assert rows == [0, 1] if goodbye else rows in ([0], [0, 1])  # the last row waits for run.log, or for a while


def test_spawned_children_have_streams_of_their_own_and_tell_their_errors(ended: Any) -> None:
    found = ended("spawns children")
    assert (1, "child done\n", False) == (found.code, found.out, found.left)
    said = {bye(frames) for frames in found.streams()}
    assert ("exception", "ValueError: a child's own") in said
    assert 2 == len(found.streams())


def test_a_forked_child_that_watches_says_goodbye_itself(ended: Any) -> None:
    found = ended("forks children")
    assert (0, "child done\n", "") == (found.code, found.out, found.err)
    assert ([0], ("exit", "")) == (steps(found.stream()), bye(found.stream()))


def test_workers_that_load_data_neither_write_nor_hold_anything(ended: Any) -> None:
    found = ended("loads data in workers")
    assert (0, "done\n", "", False) == (found.code, found.out, found.err, found.left)
    assert ([0, 1, 2, 3], ("exit", "")) == (steps(found.stream()), bye(found.stream()))


def test_a_fork_that_goes_on_is_not_the_run(ended: Any) -> None:
    found = ended("forks itself")
    assert (0, "", "") == (found.code, found.out, found.err)
    assert ([0, 1, 2], ("exit", "")) == (steps(found.stream()), bye(found.stream()))


def _bits(recipe: Recipe, **options: Any) -> tuple[bool, str]:
    bare, watched = train(recipe, watched=False), train(recipe, watched=True, **options)
    return bare.state == watched.state and bare.losses == watched.losses, watched.run


def test_a_folder_that_cannot_be_written_leaves_training_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    same, run = _bits(Recipe("fp32", steps=3), dir="/proc/ammeter")
    assert (True, "") == (same, run)
    assert 1 == len(caplog.records)
    assert "ammeter cannot watch this run (" in caplog.text


def test_a_folder_that_vanishes_in_the_middle_leaves_training_as_it_is(tmp_path: Path) -> None:
    import shutil

    def vanish(step: int, model: torch.nn.Module) -> None:
        if step == 5 and (tmp_path / "gone").exists():
            shutil.rmtree(tmp_path / "gone")

    same, run = _bits(Recipe("fp32", steps=20, hook=vanish), dir=tmp_path / "gone")
    assert same
    assert run
    assert not (tmp_path / "gone").exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a tmpfs of 1 MB of which 12 KB are free."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]).returncode:
        parts.missing("a tmpfs can only be mounted by root who has the right to; run this test in such a container")
    try:
        (place / "filler").write_bytes(b"x" * (2**20 - 12 * 1024))
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_fills_up_leaves_training_as_it_is_and_the_loss_is_counted(full_disk: Path) -> None:
    def free(step: int, model: torch.nn.Module) -> None:
        if step == 90:
            (full_disk / "filler").unlink(missing_ok=True)

    bare = train(Recipe("fp32", steps=100), watched=False)
    watched = train(Recipe("fp32", steps=100, hook=free), watched=True, dir=full_disk)
    assert (bare.state, bare.losses) == (watched.state, watched.losses)
    rows, frames = stream(watched.run, full_disk)
    assert 0 < len(rows) < 90
    lost = sum(frame.steps for frame in frames if type(frame).__name__ == "Lost")
    assert 100 == len(rows) + lost
    assert ("closed", "") == bye(frames)


def test_a_log_handler_that_raises_does_not_reach_the_program(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the handler's own")

    handler, log = Broken(), logging.getLogger("ammeter")
    log.addHandler(handler)
    try:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        assert "" == ammeter.watch(model, optimizer, dir="/proc/ammeter").id
        run = ammeter.watch(model, optimizer, dir=tmp_path)
        run.log(loss="not a number")
        optimizer.step()
        run.close()
    finally:
        log.removeHandler(handler)
    rows, _ = stream(run.id, tmp_path)
    assert [0] == rows.steps.tolist()


def test_without_a_home_folder_the_program_trains_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("AMMETER_DIR")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it answers for a user without a home
    monkeypatch.setattr(Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError("no home directory")))
    assert "" == train(Recipe("fp32", steps=2), watched=True).run
    assert "this user has no home folder; set AMMETER_DIR" in caplog.text


def test_a_lazy_module_can_be_watched_before_it_knows_its_shapes(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert ["0.weight", "0.bias", "1.weight", "1.bias"] == [tensor.name for tensor in rows.schema.tensors]
    assert np.isfinite(rows.stat("grad.norm")).all()


def test_disabled_means_disabled_even_with_settings_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_DISABLE", "1")
    monkeypatch.setenv("AMMETER_URL", "nonsense")
    assert "" == train(Recipe("fp32", steps=1), watched=True).run


def test_a_run_names_its_device_as_nvml_does(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "604ac76c-d9cf-fef3-62e9-d92044ab6e52"
    model = torch.nn.Linear(2, 2)
    watched = Watched([model], [torch.optim.SGD(model.parameters(), lr=0.1)], [])
    assert {} == run_facts.uuids(watched)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=uuid))
    assert {"device_uuid": f"GPU-{uuid}"} == run_facts.uuids(watched)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="before torch told it"))
    assert {} == run_facts.uuids(watched)
