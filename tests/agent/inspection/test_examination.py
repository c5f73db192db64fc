"""A checkpoint of each format is examined alike, on this machine and in a store."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from ammeter.inspection.examination import examine
from ammeter.inspection.inspected import DISTRIBUTED, SAFETENSORS, TORCH, Inspected
from ammeter.inspection.metadata import read_index
from ammeter.inspection.place import NotJudged, Place, Unreachable
from tests.agent import object_store
from tests.agent.object_store import save_distributed, training_state
from tests.parts import library

safetensors = library("safetensors.torch")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store.serving() as address:
        yield address


@pytest.fixture(params=["local", "file", "memory", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: str = request.param
    if kind == "s3":
        return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"
    return {"local": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://{tmp_path.name}"}[kind]


def torch_save(state: Any, address: str) -> None:
    with fsspec.open(address, "wb") as file:
        torch.save(state, file)


def old_save(state: Any, address: str) -> None:
    with fsspec.open(address, "wb") as file:
        torch.save(state, file, _use_new_zipfile_serialization=False)


def shards_save(state: Any, address: str) -> None:
    save_distributed(state, address)


def tensors_save(state: Any, address: str) -> None:
    with fsspec.open(address, "wb") as file:
        file.write(safetensors.save(state["model"]))


Save = Callable[[Any, str], None]
TRAININGS = [(torch_save, TORCH), (old_save, TORCH), (shards_save, DISTRIBUTED)]
ALL = [*TRAININGS, (tensors_save, SAFETENSORS)]


def look(address: str) -> Inspected:
    return examine(Place(address))


@pytest.mark.parametrize(("save", "form"), TRAININGS)
def test_a_whole_checkpoint_has_everything_that_was_saved(save: Save, form: str, folder: str) -> None:
    save(training_state(), f"{folder}/step-1")
    found = look(f"{folder}/step-1")
    assert (form, "", True) == (found.format, found.broken, found.is_sound)
    assert found.contents is not None
    parts = dict.fromkeys(("optimizer", "scaler", "scheduler", "rng", "progress", "whole"), True)
    assert {"weights": {"float32": 15}, **parts} == found.contents.plain()
    assert (3, 4) == found.weights["model.weight"]
    assert found.bytes > 1000


def test_a_safetensors_file_has_only_weights(folder: str) -> None:
    tensors_save(training_state(), f"{folder}/model.safetensors")
    found = look(f"{folder}/model.safetensors")
    assert (SAFETENSORS, 2, True) == (found.format, found.tensors, found.is_sound)
    assert found.contents is not None
    assert ({"float32": 15}, False) == (dict(found.contents.weights), found.contents.optimizer)
    assert {"weight": (3, 4), "bias": (3,)} == found.weights


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("save", "form"), ALL)
def test_the_tensor_that_is_not_finite_is_named(save: Save, form: str, value: float, tmp_path: Path) -> None:
    state = training_state()
    state["model"]["bias"][2] = value
    save(state, f"{tmp_path}/it")
    found = look(f"{tmp_path}/it")
    assert form == found.format
    assert 1 == len(found.nonfinite)
    assert found.nonfinite[0] in ("model.bias", "bias")
    assert not found.is_sound
    assert f"1 of {found.tensors} tensors are not finite" in found.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.complex64])
@pytest.mark.parametrize("save", [torch_save, shards_save, tensors_save])
def test_tensors_of_every_dtype_are_read(save: Save, dtype: torch.dtype, tmp_path: Path) -> None:
    save({"model": {"a": torch.ones(3, 2).to(dtype), "empty": torch.zeros(0).to(dtype)}}, f"{tmp_path}/it")
    assert look(f"{tmp_path}/it").is_sound


@pytest.mark.parametrize("save", [torch_save, old_save, tensors_save])
def test_a_file_that_was_cut_is_broken(save: Save, folder: str) -> None:
    save(training_state(), f"{folder}/it")
    with fsspec.open(f"{folder}/it", "rb") as file:
        whole = file.read()
    with fsspec.open(f"{folder}/it", "wb") as file:
        file.write(whole[:-8])
    found = look(f"{folder}/it")
    assert "" != found.broken
    assert not found.is_sound
    assert found.contents is None


def test_a_distributed_checkpoint_whose_last_file_was_not_written_is_broken(folder: str) -> None:
    shards_save(training_state(), f"{folder}/it")
    storage, path = fsspec.core.url_to_fs(f"{folder}/it")
    storage.rm(f"{path}/.metadata")
    assert "it has no .metadata" in look(f"{folder}/it").broken


def test_a_distributed_checkpoint_with_a_short_or_missing_file_is_broken(tmp_path: Path) -> None:
    shards_save(training_state(), f"{tmp_path}/it")
    (file,) = (tmp_path / "it").glob("*.distcp")
    os.truncate(file, file.stat().st_size - 10)
    assert f"its file {file.name} has" in look(f"{tmp_path}/it").broken
    file.unlink()
    assert f"its file {file.name} is missing" == look(f"{tmp_path}/it").broken


def test_a_part_with_other_bytes_is_broken(tmp_path: Path) -> None:
    shards_save(training_state(), f"{tmp_path}/it")
    (file,) = (tmp_path / "it").glob("*.distcp")
    file.write_bytes(b"\0" * file.stat().st_size)
    assert "weights_only=True does not load it" in look(f"{tmp_path}/it").broken


class Runs:
    """Something that runs a program when it is loaded."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return os.system, (self._command,)


@pytest.mark.parametrize("save", [torch_save, shards_save])
def test_no_program_in_a_checkpoint_runs(save: Save, tmp_path: Path) -> None:
    save({"a": Runs(f"touch {tmp_path}/ran")}, f"{tmp_path}/it")
    (tmp_path / "ran").unlink(missing_ok=True)
    found = look(f"{tmp_path}/it")
    assert not (tmp_path / "ran").exists()
    assert (False, "") == (found.is_sound, found.broken)
    assert "weights_only=True does not load it" in found.unread


def test_no_program_in_an_index_runs(tmp_path: Path) -> None:
    shards_save(training_state(), f"{tmp_path}/it")
    (tmp_path / "it" / ".metadata").write_bytes(pickle.dumps(Runs(f"touch {tmp_path}/ran")))
    with pytest.raises(NotJudged, match=r"its .metadata contains posix.system, which torch does not put into it"):
        look(f"{tmp_path}/it")
    assert not (tmp_path / "ran").exists()


def test_an_index_that_was_cut_is_broken(tmp_path: Path) -> None:
    shards_save(training_state(), f"{tmp_path}/it")
    index = tmp_path / "it" / ".metadata"
    index.write_bytes(index.read_bytes()[:-100])
    assert "its .metadata cannot be read" in look(f"{tmp_path}/it").broken


@pytest.mark.parametrize(("module", "name"), [("torch", "load"), ("torch.distributed.checkpoint.metadata", "os.walk")])
def test_an_index_may_not_name_a_function(module: str, name: str) -> None:
    content = b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(name)]) + name.encode()
    with pytest.raises(NotJudged, match="which torch does not put into it"):
        read_index(content + b"\x93.")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (struct.pack("<Q", 2) + b"{}" + b"1234", "its header describes 0 bytes of tensors, and it has 4"),
        (struct.pack("<Q", 9) + b'{"a": [1]', "its header is not that of a safetensors file"),
        (struct.pack("<Q", 4) + b'{"a"', "its header is not that of a safetensors file"),
    ],
)
def test_a_header_that_describes_another_file_is_broken(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(content)
    assert expected == look(f"{tmp_path}/it").broken


@pytest.mark.parametrize(
    ("shape", "offsets", "expected"),
    [
        ([1], [0, 8], "the bytes of a do not have its shape"),
        ([2], [0, 8], ""),
        ([1], [4, 8], "the offsets in its header leave a gap or overlap"),
    ],
)
def test_the_bytes_of_a_tensor_are_those_of_its_shape(
    shape: list[int], offsets: list[int], expected: str, tmp_path: Path
) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    (tmp_path / "it").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert expected == look(f"{tmp_path}/it").broken


@pytest.mark.parametrize("block", [1, 40, 2**23])
@pytest.mark.parametrize("save", [shards_save, tensors_save])
def test_parts_are_read_in_blocks_of_any_size(
    save: Save, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ammeter.inspection.place.BLOCK_BYTES", block)
    state = training_state()
    state["model"]["bias"][1] = float("nan")
    save(state, f"{tmp_path}/it")
    assert ["bias"] == [name.removeprefix("model.") for name in look(f"{tmp_path}/it").nonfinite]


def test_what_is_not_there_is_not_called_broken(folder: str) -> None:
    with pytest.raises(Unreachable, match="does not exist"):
        look(f"{folder}/nothing")


def test_a_storage_without_a_library_is_named() -> None:
    with pytest.raises(Unreachable, match="Protocol not known"):
        Place("unheardof://a/b")


def test_a_copy_that_the_disk_has_no_room_for_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_save(training_state(), "memory://room/it")
    monkeypatch.setattr("ammeter.inspection.place.SPARE_DISK_BYTES", 2**80)
    with pytest.raises(NotJudged, match=r"has no room for a copy of \d+ bytes; set TMPDIR"):
        look("memory://room/it")


def test_no_copy_of_a_file_is_left(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_save(training_state(), f"{bucket}/left")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert look(f"{bucket}/left").is_sound
    assert [] == list(tmp_path.iterdir())
