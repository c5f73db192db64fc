from __future__ import annotations

import io
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import load as load_by_name
from torch import save as save_by_name
from torch.distributed import checkpoint as distributed
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from tests.agent.probes.checkpoint.program import Program, torch_save
from tests.agent.training import watching


def _old_form(saved: Any, path: Any) -> None:
    torch.save(saved, path, _use_new_zipfile_serialization=False)


def _by_name(saved: Any, path: Any) -> None:
    save_by_name(saved, path)


def _open_file(saved: Any, path: Any) -> None:
    with open(path, "wb") as file:
        torch.save(saved, file)


WAYS: list[Callable[[Any, Any], None]] = [torch_save, _old_form, _by_name, _open_file]


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
    elements = sum(tensor.numel() for tensor in program.model.state_dict().values() if tensor.is_floating_point())
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
    assert [missing] == [event.data["missing"] for event in program.told()]


def test_half_weights_of_a_run_in_float32_are_not_all_of_it(program: Program, tmp_path: Path) -> None:
    half = {
        name: tensor.bfloat16() for name, tensor in program.model.state_dict().items() if tensor.is_floating_point()
    }
    torch.save({**program.state(), "model": half}, tmp_path / "x.pt")
    assert ["float32 weights"] == program.told()[0].data["missing"]


def test_a_run_without_a_scaler_or_in_half_precision_needs_none(tmp_path: Path) -> None:
    program = Program(tmp_path, scaler=False, dtype=torch.bfloat16)
    state = program.state()
    assert {} == state.pop("scaler")
    torch.save(state, tmp_path / "x.pt")
    assert [[]] == [event.data["missing"] for event in program.told()]


def test_who_else_can_read_it_is_told(program: Program, tmp_path: Path) -> None:
    torch.save(program.state(), tmp_path / "x.pt")
    tmp_path.chmod(0o700)
    torch.save(program.state(), tmp_path / "x.pt")
    saved = program.told()
    mode = (tmp_path / "x.pt").stat().st_mode & 0o777
    assert [f"{mode:04o}"] * 2 == [event.data["mode"] for event in saved]
    assert [] == saved[1].data["exposed"]


def test_a_path_is_told_from_the_root_on(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    torch.save(program.state(), "x.pt")
    torch.save(program.state(), Path("../y.pt"))
    torch.load("x.pt")
    assert [str(tmp_path / "out/x.pt"), str(tmp_path / "y.pt")] == [event.data["path"] for event in program.told()]
    assert [str(tmp_path / "out/x.pt")] == [event.data["path"] for event in program.told("checkpoint.restored")]


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
    assert ["x.pt"] == [event.data["path"].split("/")[-1] for event in program.told()]


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


def test_a_distributed_checkpoint_is_one_whatever_it_writes(program: Program, tmp_path: Path) -> None:
    state = {"model": program.model.state_dict(), "optim": program.optimizer.state_dict(), "step": 3}
    folder = tmp_path / "sharded"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        save_shards(state, checkpoint_id=folder)
        load_shards(state, checkpoint_id=folder)
        async_save(state, checkpoint_id=tmp_path / "later").result()  # type: ignore[union-attr]
    program.step()
    second, first = sorted(program.told(), key=lambda event: str(event.data["path"]))
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert (str(folder), total) == (first.data["path"], first.data["bytes"])
    assert str(tmp_path / "later") == second.data["path"]
    assert [["scaler"], ["scaler"]] == [event.data["missing"] for event in (first, second)]
    (restored,) = program.told("checkpoint.restored")
    assert str(folder) == restored.data["path"]
    assert restored.data["contents"]["optimizer"]


def test_a_library_that_is_imported_later_is_heard_from_then_on(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors.torch.save_file looks serialize_file up in its module."""
    for name in ("safetensors", "safetensors.torch"):  # other tests may have imported the real one
        monkeypatch.delitem(sys.modules, name, raising=False)
    program: Program = request.getfixturevalue("program")
    library: Any = ModuleType("safetensors.torch")
    library.serialize_file = lambda specs, filename, metadata=None: Path(filename).write_bytes(b"12345")
    package: Any = ModuleType("safetensors")
    package.torch = library
    monkeypatch.setitem(sys.modules, "safetensors", package)
    original = library.serialize_file
    deadline = time.monotonic() + 10
    while library.serialize_file is original and time.monotonic() < deadline:
        program.step()  # rows are finished several at once
    shapes = {name: list(parameter.shape) for name, parameter in program.model.named_parameters()}
    specs = {name: SimpleNamespace(dtype="F32", shape=shape) for name, shape in shapes.items()}
    library.serialize_file(specs, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (only,) = program.told()
    assert (str(tmp_path / "model.safetensors"), 5) == (only.data["path"], only.data["bytes"])
    assert {"float32": sum(parameter.numel() for parameter in program.model.parameters())} == only.data["contents"][
        "weights"
    ]
    assert ["optimizer", "scaler"] == only.data["missing"]
    assert library.serialize_file is original


def test_after_the_run_nothing_of_ours_is_left_in_torch(program: Program, tmp_path: Path) -> None:
    inside = [torch.serialization._save, torch.serialization._load, distributed.state_dict_saver._save_state_dict]
    program.run.close()
    after = [torch.serialization._save, torch.serialization._load, distributed.state_dict_saver._save_state_dict]
    assert all(one is not other for one, other in zip(inside, after, strict=True))
    torch.save(program.state(), tmp_path / "x.pt")
    assert [] == program.told()


def test_the_operands_that_ammeter_saves_are_no_checkpoint(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    with watching(tmp_path, model, torch.optim.SGD(model.parameters())) as seen:
        folder = tmp_path / seen.run / "reproducers"
        folder.mkdir()
        torch.save(model.state_dict(), folder / "step-3-MmBackward0.pt")
        torch.save(model.state_dict(), tmp_path / "own.pt")
    assert [str(tmp_path / "own.pt")] == [event.data["path"] for event in seen.events("checkpoint.saved")]
