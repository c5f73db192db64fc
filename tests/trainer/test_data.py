from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

import data


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for number in range(20):
        folder = tmp_path / f"part{number % 3}"
        folder.mkdir(exist_ok=True)
        (folder / f"module{number:02}.py").write_text(f"x = {number}\n")
    return tmp_path


def read(text: torch.Tensor) -> str:
    return bytes(text.tolist()).decode("latin-1")


def test_the_text_is_the_same_from_wherever_the_trainer_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = data.load(limit=100_000)
    monkeypatch.chdir(tmp_path)
    assert all(map(torch.equal, first, data.load(limit=100_000)))


def test_the_python_library_gives_megabytes_but_not_without_end() -> None:
    text, held_back = data.load()
    assert 2_000_000 < len(text) + len(held_back) < 2 * data.SIZE_LIMIT


def test_every_tenth_file_is_held_back(library: Path) -> None:
    text, held_back = data.load(library)
    assert 18 == read(text).count("x =")
    assert 2 == read(held_back).count("x =")
    assert not set(read(text).split("\n")) & set(read(held_back).split()) - {"x", "=", ""}


def test_the_files_come_by_name_not_as_the_disk_has_them(library: Path) -> None:
    names = [path.relative_to(library).as_posix() for path in data.source_files(library)]
    assert sorted(names) == names


def test_what_is_installed_beside_the_library_does_not_count(library: Path) -> None:
    (library / "site-packages").mkdir()
    (library / "site-packages" / "extra.py").write_text("y = 1\n")
    text, held_back = data.load(library)
    assert "y" not in read(text) + read(held_back)


def test_a_folder_above_the_library_may_have_any_name(tmp_path: Path) -> None:
    library = tmp_path / "test" / "lib"
    library.mkdir(parents=True)
    (library / "a.py").write_text("x = 1\n")
    assert 1 == len(list(data.source_files(library)))


def test_what_is_not_ascii_is_one_unknown_character() -> None:
    assert [97, data.UNKNOWN, data.UNKNOWN, 98] == data.encode("aß😀b").tolist()


def batches(seed: int = 0) -> data.Windows:
    text = data.encode(Path(os.__file__).read_text(encoding="utf-8"))
    return data.Windows(text, batch_size=4, context=16, seed=seed, device=torch.device("cpu"))


def test_the_target_of_every_character_is_the_next_one() -> None:
    inputs, targets = batches().batch(3)
    assert (4, 16) == inputs.shape == targets.shape
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_batch_depends_on_its_number_and_the_seed_alone() -> None:
    one, again = batches(), batches()
    one.batch(0)
    assert torch.equal(one.batch(7)[0], again.batch(7)[0])
    assert not torch.equal(one.batch(7)[0], one.batch(8)[0])
    assert not torch.equal(one.batch(7)[0], batches(seed=1).batch(7)[0])


def images(seed: int = 0, *, held_back: bool = False) -> data.Images:
    return data.Images(32, 8, seed, torch.device("cpu"), held_back=held_back)


def test_images_depend_on_their_number_and_the_seed_alone() -> None:
    one, again = images(), images()
    one.batch(0)
    assert all(map(torch.equal, one.batch(7), again.batch(7)))
    assert not torch.equal(one.batch(7)[0], one.batch(8)[0])
    assert not torch.equal(one.batch(7)[0], images(seed=1).batch(7)[0])


def test_images_that_are_held_back_are_never_trained_on() -> None:
    trained_on = {image.numpy().tobytes() for n in range(20) for image in images().batch(n)[0]}
    assert 640 == len(trained_on)
    assert not trained_on & {image.numpy().tobytes() for n in range(20) for image in images(held_back=True).batch(n)[0]}


def test_there_are_images_of_every_kind() -> None:
    shown, kinds = images().batch(0)
    assert ((32, 1, 8, 8), torch.float32) == (shown.shape, shown.dtype)
    assert ((32,), torch.int64) == (kinds.shape, kinds.dtype)
    assert set(range(data.CLASSES)) == {int(kind) for n in range(20) for kind in images().batch(n)[1]}


def test_a_wave_is_seen_through_the_noise() -> None:
    shown, _ = images().batch(0)
    assert math.sqrt(1 / 2 + data.NOISE**2) == pytest.approx(shown.std().item(), rel=0.1)
