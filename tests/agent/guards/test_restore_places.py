"""Checkpoints in a store, of all ranks, or in another format are read back in another process, too."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from ammeter.guards import restore_check, restore_process
from ammeter.inspection.place import NotJudged, Place, Unreachable
from tests import forked
from tests.agent import object_store
from tests.agent.guards.restoring import run, whole
from tests.agent.object_store import save_distributed
from tests.parts import library

pytestmark = pytest.mark.long
safetensors = library("safetensors.torch")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store.serving() as address:
        yield address


@pytest.fixture(autouse=True)
def _forked_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads in a fork of a process that has imported torch."""
    monkeypatch.setattr(restore_process, "subprocess", forked.as_module())


Save = Callable[[Any, str], None]


def once(save: Save, address: str, spoil: bool = False) -> Callable[..., None]:
    """Saves the whole state at one step; spoil: with a weight that is not finite, in the file only."""

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 4:
            state = whole(net, optimizer, scaler)
            if spoil:
                state["model"] = {name: tensor.clone() for name, tensor in state["model"].items()}
                state["model"]["last.bias"][0] = math.nan
            save(state, address)

    return before


def torch_save(state: Any, address: str) -> None:
    with fsspec.open(address, "wb") as file:
        torch.save(state, file)


def weights_only(state: Any, address: str) -> None:
    safetensors.save_file(state["model"], address)


@pytest.mark.parametrize("save", [torch_save, save_distributed])
def test_a_whole_checkpoint_in_a_bucket_passes(save: Save, bucket: str, tmp_path: Path) -> None:
    address = f"{bucket}/{tmp_path.name}/it"
    _, actions = run(tmp_path, once(save, address))
    assert [("passed", address)] == [(data["outcome"], data["path"]) for data in actions], actions


@pytest.mark.parametrize("save", [torch_save, save_distributed])
def test_one_that_is_not_finite_fails(save: Save, bucket: str, tmp_path: Path) -> None:
    _, (action,) = run(tmp_path, once(save, f"{bucket}/{tmp_path.name}/it", spoil=True))
    assert "failed" == action["outcome"]
    assert "model.last.bias first" in action["reason"]


def test_the_folder_of_all_ranks_and_a_safetensors_file_are_read_on_this_machine_too(tmp_path: Path) -> None:
    _, (action,) = run(tmp_path / "runs", once(save_distributed, str(tmp_path / "it")))
    assert "passed" == action["outcome"], action
    _, (action,) = run(tmp_path / "more", once(weights_only, str(tmp_path / "model.safetensors")))
    assert "partial" == action["outcome"]
    assert "lacks optimizer, scaler" in action["reason"]


def test_a_checkpoint_without_a_tensor_that_is_trained_is_partial(tmp_path: Path) -> None:
    def save(state: Any, address: str) -> None:
        del state["model"]["last.weight"]
        torch.save(state, address)

    _, (action,) = run(tmp_path / "runs", once(save, str(tmp_path / "it")))
    assert "partial" == action["outcome"]
    assert "trained tensors, last.weight first" in action["reason"]


def test_a_file_in_the_memory_of_the_program_is_not_read(tmp_path: Path) -> None:
    _, actions = run(tmp_path, once(torch_save, "memory://it"))
    assert [] == actions


def test_a_store_that_refuses_says_nothing_about_the_checkpoint(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    library("s3fs").S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(Unreachable, match="cannot be read"):
            restore_check.await_upload(Place(f"{bucket}/it"), None)
    finally:
        library("s3fs").S3FileSystem.clear_instance_cache()


def test_the_file_of_an_earlier_save_is_not_taken_for_the_new_one(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_check, "UPLOAD_POLL_SECONDS", 0.01)
    monkeypatch.setattr(restore_check, "UPLOAD_SECONDS", 0.05)
    torch_save({"a": torch.ones(2)}, f"{bucket}/last.pt")
    now, place = time.time(), Place(f"{bucket}/last.pt")
    restore_check.await_upload(place, now - 1)
    with pytest.raises(NotJudged, match="no file that is as new as the save"):
        restore_check.await_upload(place, now + 3600)


def test_a_file_that_is_uploaded_later_is_waited_for(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def upload(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 2:
            torch_save({"a": torch.ones(2)}, f"{bucket}/later.pt")

    monkeypatch.setattr(restore_check, "sleep", upload)
    restore_check.await_upload(Place(f"{bucket}/later.pt"), time.time())
    assert 2 == len(asked)
