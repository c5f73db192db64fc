"""Stand-ins for data that the programs would download: small, and the same in each run."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path

Maker = Callable[[Path], None]

WORDS = 9_000
IMAGES = 1_000
MNIST_PIXELS = 28 * 28

LETTERS = "eeeeeetttttaaaaoooooiiiinnnnssshhhrrrdddlllcumwfgypbvkjxqz"
"""Letters about as often as in English."""


def text() -> str:
    """English-like words, of which some occur often."""
    chosen = random.Random(0)
    known = ["".join(chosen.choice(LETTERS) for _ in range(chosen.randint(1, 8))) for _ in range(400)]
    known += ["O God, O God!", "The", "King:", "Qzjx", "-", "'tis", "3", "$", "&;?", "VWFPLYHUNMRSEIAB", "CDJKXZ"]
    words = (known[int(len(known) * chosen.random() ** 2)] for _ in range(WORDS))
    lines = []
    for number, word in enumerate(words):
        lines.append(word + ("\n" if number % 9 == 8 else " "))
    return "".join([*lines, "\n", *(f"{word}\n" for word in known)])


def text_lines() -> list[str]:
    """The lines of text() with several words."""
    return [line for line in text().splitlines() if " " in line]


def text_at(*paths: str) -> Maker:
    """Writes the text to these files of a repository."""

    def write(folder: Path) -> None:
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text())

    return write


def mnist_at(*folders: str) -> Maker:
    """Writes digits as MNIST's files: a bright square whose place is the label."""

    def write(folder: Path) -> None:
        for root in folders:
            raw = folder / root / "MNIST" / "raw"
            raw.mkdir(parents=True, exist_ok=True)
            for part, count in (("train", IMAGES), ("t10k", IMAGES // 10)):
                images, labels = _digits(count)
                header = struct.pack(">IIII", 0x803, count, 28, 28)
                _write(raw / f"{part}-images-idx3-ubyte", header + images)
                _write(raw / f"{part}-labels-idx1-ubyte", struct.pack(">II", 0x801, count) + labels)

    return write


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with gzip.open(f"{path}.gz", "wb") as packed:
        packed.write(content)


def _digits(count: int) -> tuple[bytes, bytes]:
    chosen = random.Random(1)
    images, labels = bytearray(), bytearray()
    for _ in range(count):
        label = chosen.randrange(10)
        image = bytearray(chosen.randrange(40) for _ in range(MNIST_PIXELS))
        for row in range(6):
            start = (4 + 10 * (label // 5) + row) * 28 + 2 + 5 * (label % 5)
            image[start : start + 4] = bytes(4 * [200 + chosen.randrange(55)])
        images += image
        labels.append(label)
    return bytes(images), bytes(labels)


def pictures(folder_name: str, file_name: str, classes: int = 2, count: int = 96, pixels: int = 32) -> Maker:
    """Writes images of `classes` colours.

    Args:
        file_name: Path of an image in the folder; {part} is train or validation, {label} its class, {number} its own.
    """

    def write(folder: Path) -> None:
        from PIL import Image

        chosen = random.Random(2)
        for number in range(count):
            label = number % classes
            part = "validation" if number % 8 == 7 else "train"
            path = folder / folder_name / file_name.format(part=part, label=label, number=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            colors = bytes(
                min(255, chosen.randrange(160) + 95 * (label == axis)) for _ in range(pixels**2) for axis in range(3)
            )
            Image.frombytes("RGB", (pixels, pixels), colors).save(path)

    return write
