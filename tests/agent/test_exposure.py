from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter.probes.exposure import exposure


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can reach; pytest's own are private."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def _file(folder: Path, mode: int, *folders: int) -> Path:
    """A file below folders of these modes, outermost first."""
    for at in range(len(folders)):
        folder = folder / f"folder{at}"
        folder.mkdir()
    path = folder / "model.pt"
    path.write_bytes(b"weights")
    path.chmod(mode)
    for at, each in reversed(list(enumerate(folders))):
        path.parents[len(folders) - 1 - at].chmod(each)
    return path


@pytest.mark.parametrize(
    ("mode", "folders", "expected"),
    [
        (0o600, (), []),
        (0o644, (), ["read"]),
        (0o640, (0o755,), []),
        (0o666, (0o755, 0o755), ["read", "replace"]),
        (0o644, (0o700,), []),
        (0o666, (0o700, 0o777), []),
        (0o600, (0o777,), ["replace"]),
        (0o600, (0o777, 0o755), ["replace"]),
        (0o644, (0o1777,), ["read"]),
        (0o600, (0o711,), []),
        (0o644, (0o711,), ["read"]),
        (0o644, (0o750,), []),
        (0o600, (0o776,), []),
    ],
)
def test_the_whole_path_is_judged(mode: int, folders: tuple[int, ...], expected: list[str], place: Path) -> None:
    path = _file(place, mode, *folders)
    assert (f"{mode:04o}", expected) == exposure(str(path))


def test_a_link_is_as_exposed_as_what_it_leads_to_and_as_where_it_lies(place: Path) -> None:
    private = _file(place, 0o644, 0o700)
    (place / "open").mkdir(mode=0o777)
    (place / "open").chmod(0o777)
    link = place / "open" / "latest.pt"
    link.symlink_to(private)
    assert ("0644", ["replace"]) == exposure(str(link))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        exposure(str(tmp_path / "gone"))
