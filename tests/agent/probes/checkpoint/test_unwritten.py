"""Checkpoints that are written through a buffer, through fsspec or in another thread."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from tests.agent.probes.checkpoint.program import Program


def test_a_buffer_has_no_path(program: Program) -> None:
    buffer = io.BytesIO()
    torch.save(program.state(), buffer)
    (only,) = program.told()
    assert ("", None, "", []) == tuple(only.data[name] for name in ("path", "bytes", "mode", "exposed"))


def test_a_file_that_replaces_another_has_the_name_of_its_place(program: Program, tmp_path: Path) -> None:
    written, place = tmp_path / ".run.pt.tmp", tmp_path / "run.pt"
    torch.save(program.state(), written)
    written.replace(place)
    program.step()
    assert [str(place)] == [event.data["path"] for event in program.told()]


def test_a_file_that_is_moved_elsewhere_keeps_its_name(program: Program, tmp_path: Path) -> None:
    written, place = tmp_path / "run.pt", tmp_path / "kept" / "run.pt"
    place.parent.mkdir()
    torch.save(program.state(), written)
    written.replace(place)
    program.step()
    assert [str(written)] == [event.data["path"] for event in program.told()]


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
    assert [(str(path), path.stat().st_size)] == [(event.data["path"], event.data["bytes"]) for event in program.told()]


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
    assert [""] == [event.data["path"] for event in program.told()]


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
    assert sorted(event.step for event in saved) == [event.step for event in saved]
    assert all(not event.data["missing"] and event.data["bytes"] > 0 for event in saved)


def test_what_another_thread_saves_after_the_last_step_is_told_at_the_end(program: Program, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: torch.save(program.state(), tmp_path / "last.pt"))
    thread.start()
    thread.join()
    assert 1 == len(program.told())
