from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ammeter.inspection.access import access_to
from ammeter.inspection.place import Place
from tests.agent import object_store
from tests.agent.object_store import save_distributed, training_state


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store.serving() as address:
        yield address


@pytest.mark.parametrize(("mode", "everybody"), [(0o600, False), (0o640, False), (0o644, True)])
def test_the_mode_of_a_file_says_whether_everybody_may_read_it(mode: int, everybody: bool, tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"1")
    path.chmod(mode)
    found = access_to(Place(str(path)))
    assert (f"{mode:04o}", everybody, "not known") == (found.mode, found.world_readable, found.encryption)


def test_a_private_folder_lets_nobody_replace_the_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"1")
    path.chmod(0o666)
    tmp_path.chmod(0o700)
    assert [] == access_to(Place(str(path))).exposed


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ServerSideEncryption": "AES256"}, "AES256"),
        ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-1"}, "aws:kms key-1"),
    ],
)
def test_the_encryption_of_an_object_is_that_of_its_header(options: dict[str, str], expected: str, bucket: str) -> None:
    with fsspec.open(f"{bucket}/it", "wb", s3_additional_kwargs=options) as file:
        file.write(b"1")
    found = access_to(Place(f"{bucket}/it"))
    assert ("", None, []) == (found.mode, found.world_readable, found.exposed)
    assert found.encryption.startswith(expected.split()[0])
    assert expected.split()[-1] in found.encryption


def test_the_encryption_of_a_folder_is_that_of_a_file_in_it(bucket: str) -> None:
    save_distributed(training_state(), f"{bucket}/shards")
    storage, path = fsspec.core.url_to_fs(f"{bucket}/shards")
    for file in storage.ls(path, detail=False):
        storage.pipe_file(file, storage.cat_file(file), ServerSideEncryption="AES256")
    assert "AES256" == access_to(Place(f"{bucket}/shards")).encryption


def test_an_object_without_the_header_is_not_said_to_be_open(bucket: str) -> None:
    with fsspec.open(f"{bucket}/plain", "wb") as file:
        file.write(b"1")
    assert "not known" == access_to(Place(f"{bucket}/plain")).encryption


class Store:
    """The interface of fsspec, with what Google Cloud Storage says of an object under a key of its own."""

    protocol = ("gs", "gcs")

    def info(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": 1, "type": "file", "kmsKeyName": "projects/p/keys/k"}


def test_a_key_that_a_store_names_is_told() -> None:
    found = access_to(Place("gs://bucket/it", Store(), "bucket/it"))
    assert "projects/p/keys/k" == found.encryption
