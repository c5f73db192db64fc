from __future__ import annotations

import io
import os
import pickle
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from torch import load as load_by_name
from torch import save as save_by_name
from torch.distributed import checkpoint as distributed
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

import ammeter
from tests.agent.training import Model, events, stream


class Program:
    """A watched training program, to which things happen between two steps."""

    def __init__(self, folder: Path, scaler: bool = True, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self._folder = folder
        self.model = Model().to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaler)
        self.run = ammeter.watch(self.model, self.optimizer, self.scaler, dir=folder)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        x = torch.randn(8, 12).to(next(self.model.parameters()).dtype)
        self.scaler.scale(self.model(x).float().square().mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optim": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def told(self, name: str = "checkpoint.saved") -> list[Any]:
        """The run's end, and its events of a name."""
        self.run.close()
        frames = stream(self.run.id, self._folder)[1]
        assert [] == events(frames, "probe.failed")
        return events(frames, name)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path / "runs")
    yield program
    program.run.close()


def _torch_save(saved: Any, path: Any) -> None:
    torch.save(saved, path)


def _old_form(saved: Any, path: Any) -> None:
    torch.save(saved, path, _use_new_zipfile_serialization=False)


def _by_name(saved: Any, path: Any) -> None:
    save_by_name(saved, path)


def _open_file(saved: Any, path: Any) -> None:
    with open(path, "wb") as file:
        torch.save(saved, file)


WAYS: list[Callable[[Any, Any], None]] = [_torch_save, _old_form, _by_name, _open_file]


@pytest.mark.parametrize("save", WAYS)
def test_a_saved_checkpoint_is_told_with_its_contents(
    save: Callable[[Any, Any], None], program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "step_1.pt"
    path.parent.mkdir()
    save({**program.state(), "step": 1, "rng": torch.get_rng_state()}, path)
    os.chmod(path, 0o640)
    program.step()
    (only,) = program.told()
    elements = sum(each.numel() for each in program.model.state_dict().values() if each.is_floating_point())
    assert 1 == only.step
    assert str(path) == only.data["path"]
    assert path.stat().st_size == pytest.approx(only.data["bytes"], rel=0.01 if save is _old_form else 0)
    assert 0 < only.data["seconds"] < 5
    assert [] == only.data["missing"]
    assert {
        "weights": {"float32": elements},
        "optimizer": True,
        "scaler": True,
        "scheduler": False,
        "rng": True,
        "progress": True,
        "whole": True,
    } == only.data["contents"]


@pytest.mark.parametrize("save", WAYS)
def test_what_is_saved_has_the_same_bytes_with_and_without_us(
    save: Callable[[Any, Any], None], program: Program, tmp_path: Path
) -> None:
    state = program.state()
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    save(state, tmp_path / "with" / "x.pt")
    program.run.close()
    save(state, tmp_path / "without" / "x.pt")
    assert (tmp_path / "without" / "x.pt").read_bytes() == (tmp_path / "with" / "x.pt").read_bytes()


@pytest.mark.parametrize(
    ("left", "missing"),
    [
        (("model", "optim", "scaler"), []),
        (("model", "optim"), ["scaler"]),
        (("model",), ["optimizer", "scaler"]),
        (("optim", "scaler"), ["weights"]),
    ],
)
def test_what_a_checkpoint_lacks_is_named(
    left: tuple[str, ...], missing: list[str], program: Program, tmp_path: Path
) -> None:
    torch.save({name: part for name, part in program.state().items() if name in left}, tmp_path / "x.pt")
    assert [missing] == [each.data["missing"] for each in program.told()]


def test_half_weights_of_a_run_in_float32_are_not_all_of_it(program: Program, tmp_path: Path) -> None:
    half = {name: each.bfloat16() for name, each in program.model.state_dict().items() if each.is_floating_point()}
    torch.save({**program.state(), "model": half}, tmp_path / "x.pt")
    assert ["float32 weights"] == program.told()[0].data["missing"]


def test_a_run_without_a_scaler_or_in_half_precision_needs_none(tmp_path: Path) -> None:
    program = Program(tmp_path, scaler=False, dtype=torch.bfloat16)
    state = program.state()
    assert {} == state.pop("scaler")
    torch.save(state, tmp_path / "x.pt")
    assert [[]] == [each.data["missing"] for each in program.told()]


def test_who_else_can_read_it_is_told(program: Program, tmp_path: Path) -> None:
    torch.save(program.state(), tmp_path / "x.pt")
    tmp_path.chmod(0o700)
    torch.save(program.state(), tmp_path / "x.pt")
    saved = program.told()
    mode = (tmp_path / "x.pt").stat().st_mode & 0o777
    assert [f"{mode:04o}"] * 2 == [each.data["mode"] for each in saved]
    assert [] == saved[1].data["exposed"]


def test_a_buffer_has_no_path(program: Program) -> None:
    buffer = io.BytesIO()
    torch.save(program.state(), buffer)
    (only,) = program.told()
    assert ("", None, "", []) == tuple(only.data[name] for name in ("path", "bytes", "mode", "exposed"))


def test_a_path_is_told_from_the_root_on(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    torch.save(program.state(), "x.pt")
    torch.save(program.state(), Path("../y.pt"))
    torch.load("x.pt")
    assert [str(tmp_path / "out/x.pt"), str(tmp_path / "y.pt")] == [each.data["path"] for each in program.told()]
    assert [str(tmp_path / "out/x.pt")] == [each.data["path"] for each in program.told("checkpoint.restored")]


def _atomically(state: Any, path: str) -> None:
    """As Lightning writes: into a buffer, and that within a transaction, which moves the file into its place."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    storage, place = fsspec.core.url_to_fs(path)
    with storage.transaction, storage.open(place, "wb") as file:
        file.write(buffer.getvalue())


def _through_fsspec(state: Any, path: str) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with fsspec.open(path, mode="wb") as file:
        file.write(buffer.getvalue())


def _into_a_file_of_fsspec(state: Any, path: str) -> None:
    storage, place = fsspec.core.url_to_fs(path)
    with storage.transaction, storage.open(place, "wb") as file:
        torch.save(state, file)


FSSPEC = [_atomically, _through_fsspec, _into_a_file_of_fsspec]


@pytest.mark.parametrize("begin", ["", "file://"])
@pytest.mark.parametrize("save", FSSPEC)
def test_what_is_written_through_fsspec_has_its_path_and_size(
    save: Callable[[Any, str], None], begin: str, program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "epoch=1.ckpt"
    path.parent.mkdir()
    fsspec.open(f"{begin}{path}")
    save(program.state(), f"{begin}{path}")
    program.step()
    (only,) = program.told()
    assert (str(path), path.stat().st_size) == (only.data["path"], only.data["bytes"])
    assert f"{path.stat().st_mode & 0o777:04o}" == only.data["mode"]
    assert [] == only.data["missing"]


def test_what_another_thread_writes_through_fsspec_has_its_path(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"

    def work() -> None:
        buffer = io.BytesIO()
        torch.save(program.state(), buffer)
        saved.set()
        go_on.wait(30)
        with fsspec.open(str(path), "wb") as file:
            file.write(buffer.getvalue())

    saved, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    saved.wait(30)
    for _ in range(3):
        program.step()
    go_on.set()
    thread.join()
    program.step()
    assert [(str(path), path.stat().st_size)] == [(each.data["path"], each.data["bytes"]) for each in program.told()]


def test_a_file_in_a_store_is_told_by_its_address(program: Program) -> None:
    _through_fsspec(program.state(), "memory://bucket/x.ckpt")
    (only,) = program.told()
    assert re.fullmatch("memory:///?bucket/x.ckpt", only.data["path"])
    assert (None, []) == (only.data["bytes"], only.data["exposed"])


def test_what_is_written_in_a_later_step_is_not_the_buffer_of_an_earlier_one(program: Program, tmp_path: Path) -> None:
    torch.save(program.state(), io.BytesIO())
    for _ in range(40):  # rows are finished several at once
        program.step()
    with fsspec.open(str(tmp_path / "scores.csv"), "wb") as file:
        file.write(b"1")
    assert [""] == [each.data["path"] for each in program.told()]


def test_data_and_other_models_are_no_checkpoints(program: Program, tmp_path: Path) -> None:
    for at, other in enumerate(
        (
            torch.randn(24, 12),
            {"images": torch.randn(100, 50), "labels": torch.arange(100)},
            torch.nn.Linear(300, 300).state_dict(),
            {"lr": 0.1, "name": "run"},
            [1, 2, 3],
        )
    ):
        torch.save(other, tmp_path / f"{at}.pt")
        torch.load(tmp_path / f"{at}.pt")
    assert ([], []) == (program.told(), program.told("checkpoint.restored"))


def test_a_save_that_fails_raises_what_it_raised_and_is_not_told(program: Program, tmp_path: Path) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        torch.save({**program.state(), "lambda": lambda: 1}, tmp_path / "x.pt")
    with pytest.raises(RuntimeError, match="Parent directory"):
        torch.save(program.state(), tmp_path / "nowhere" / "x.pt")
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "gone.pt")
    torch.save(program.state(), tmp_path / "x.pt")
    assert ["x.pt"] == [each.data["path"].split("/")[-1] for each in program.told()]


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("save", WAYS)
def test_a_checkpoint_that_is_loaded_is_told(
    save: Callable[[Any, Any], None], weights_only: bool, program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    save(program.state(), path)
    found = load_by_name(path, weights_only=weights_only)
    buffer = io.BytesIO(path.read_bytes())
    torch.load(buffer, weights_only=weights_only)
    assert program.state().keys() == found.keys()
    first, second = program.told("checkpoint.restored")
    assert (str(path), "") == (first.data["path"], second.data["path"])
    assert first.data["contents"] == second.data["contents"]
    assert first.data["contents"]["optimizer"]
    assert first.data["seconds"] > 0


def test_what_another_thread_saves_is_told_with_the_next_step(program: Program, tmp_path: Path) -> None:
    def work() -> None:
        for at in range(20):
            torch.save(program.state(), tmp_path / f"{at}.pt")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        program.step()
    for thread in threads:
        thread.join()
    program.step()
    saved = program.told()
    assert 40 == len(saved)
    assert sorted(each.step for each in saved) == [each.step for each in saved]
    assert all(not each.data["missing"] and each.data["bytes"] > 0 for each in saved)


def test_what_another_thread_saves_after_the_last_step_is_told_at_the_end(program: Program, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: torch.save(program.state(), tmp_path / "last.pt"))
    thread.start()
    thread.join()
    assert 1 == len(program.told())


def test_a_distributed_checkpoint_is_one_whatever_it_writes(program: Program, tmp_path: Path) -> None:
    state = {"model": program.model.state_dict(), "optim": program.optimizer.state_dict(), "step": 3}
    folder = tmp_path / "sharded"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        save_shards(state, checkpoint_id=folder)
        load_shards(state, checkpoint_id=folder)
        async_save(state, checkpoint_id=tmp_path / "later").result()  # type: ignore[union-attr]
    program.step()
    second, first = sorted(program.told(), key=lambda each: str(each.data["path"]))
    total = sum(each.stat().st_size for each in folder.iterdir())
    assert (str(folder), total) == (first.data["path"], first.data["bytes"])
    assert str(tmp_path / "later") == second.data["path"]
    assert [["scaler"], ["scaler"]] == [each.data["missing"] for each in (first, second)]
    (restored,) = program.told("checkpoint.restored")
    assert str(folder) == restored.data["path"]
    assert restored.data["contents"]["optimizer"]


def test_a_library_that_is_imported_later_is_heard_from_then_on(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors.torch.save_file looks serialize_file up in its module."""
    library: Any = ModuleType("safetensors.torch")
    library.serialize_file = lambda specs, filename, metadata=None: Path(filename).write_bytes(b"12345")
    package: Any = ModuleType("safetensors")
    package.torch = library
    monkeypatch.setitem(sys.modules, "safetensors", package)
    original = library.serialize_file
    deadline = time.monotonic() + 10
    while library.serialize_file is original and time.monotonic() < deadline:
        program.step()  # rows are finished several at once
    shapes = {name: list(each.shape) for name, each in program.model.named_parameters()}
    specs = {name: SimpleNamespace(dtype="F32", shape=shape) for name, shape in shapes.items()}
    library.serialize_file(specs, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (only,) = program.told()
    assert (str(tmp_path / "model.safetensors"), 5) == (only.data["path"], only.data["bytes"])
    assert {"float32": sum(each.numel() for each in program.model.parameters())} == only.data["contents"]["weights"]
    assert ["optimizer", "scaler"] == only.data["missing"]
    assert library.serialize_file is original


def test_after_the_run_nothing_of_ours_is_left_in_torch(program: Program, tmp_path: Path) -> None:
    inside = [torch.serialization._save, torch.serialization._load, distributed.state_dict_saver._save_state_dict]
    program.run.close()
    after = [torch.serialization._save, torch.serialization._load, distributed.state_dict_saver._save_state_dict]
    assert all(one is not other for one, other in zip(inside, after, strict=True))
    torch.save(program.state(), tmp_path / "x.pt")
    assert [] == program.told()
