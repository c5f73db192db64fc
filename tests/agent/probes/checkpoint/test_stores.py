"""Checkpoints that a program writes to an object store, in the ways that programs do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
import torch
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

from tests.agent import object_store
from tests.agent.object_store import save_distributed
from tests.agent.probes.checkpoint.program import Program
from tests.parts import library

safetensors = library("safetensors.torch")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store.serving() as address:
        yield address


def _into_the_file(state: Any, address: str) -> None:
    with fsspec.open(address, "wb") as file:
        torch.save(state, file)


def _shards_by_address(state: Any, address: str) -> None:
    save_distributed(state, address)


def _shards_by_writer(state: Any, address: str) -> None:
    save_distributed(state, None, storage_writer=FsspecWriter(address))


@pytest.mark.parametrize("save", [_into_the_file, _shards_by_address, _shards_by_writer])
def test_a_checkpoint_in_a_bucket_has_its_address_and_contents(
    save: Callable[[Any, str], None], program: Program, bucket: str
) -> None:
    address = f"{bucket}/{save.__name__}/step-1"
    save(program.state(), address)
    program.step()
    (only,) = program.told()
    assert address == only.data["path"]
    assert [] == only.data["missing"]
    assert (True, True) == (only.data["contents"]["optimizer"], only.data["contents"]["scaler"])
    assert (None, "", []) == tuple(only.data[name] for name in ("bytes", "mode", "exposed"))


def test_a_safetensors_file_that_is_made_in_memory_has_the_address_that_it_is_written_to(
    program: Program, bucket: str
) -> None:
    content = safetensors.save(program.model.state_dict())
    with fsspec.open(f"{bucket}/model.safetensors", "wb") as file:
        file.write(content)
    program.step()
    (only,) = program.told()
    assert f"{bucket}/model.safetensors" == only.data["path"]
    assert ["optimizer", "scaler"] == only.data["missing"]


def test_a_file_that_is_copied_to_a_bucket_has_the_path_that_it_was_saved_to(
    program: Program, bucket: str, tmp_path: Any
) -> None:
    torch.save(program.state(), tmp_path / "x.pt")
    fsspec.filesystem("s3").put_file(str(tmp_path / "x.pt"), f"{bucket}/x.pt")
    assert [str(tmp_path / "x.pt")] == [event.data["path"] for event in program.told()]


def test_nothing_is_read_from_the_bucket(program: Program, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    client = type(fsspec.filesystem("s3"))
    original = client._call_s3

    def noting(self: Any, method: str, *args: Any, **options: Any) -> Any:
        asked.append(method)
        return original(self, method, *args, **options)

    monkeypatch.setattr(client, "_call_s3", noting)
    _into_the_file(program.state(), f"{bucket}/y.pt")
    own = list(asked)
    program.step()
    assert 1 == len(program.told())
    assert own == asked
    assert [] == [method for method in asked if method == "get_object"]
