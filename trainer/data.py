"""What there is to learn: the source of Python's own standard library, or waves in noise. Nothing is downloaded.

A batch is a function of the seed and its number alone, so a resumed run needs one number to go on where it was.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

VOCABULARY = 128  # ASCII; everything else is the unknown character. A multiple of 8, for tensor cores.
UNKNOWN = 0
SIZE_LIMIT = 6_000_000  # characters
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
TABLES = {"encodings", "pydoc_data"}  # character tables and one huge string: no code to learn from

DIRECTIONS = 8
WAVES = (0.15, 0.3)  # per pixel
CLASSES = DIRECTIONS * len(WAVES)
NOISE = 0.3  # standard deviation, beside waves from -1 to 1


class Batches(Protocol):
    """Batches by number, the same for the same seed."""

    about: str
    """What they are taken from, in words."""

    def number(self, n: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""


def load(library: Path | None = None, limit: int = SIZE_LIMIT) -> tuple[Tensor, Tensor]:
    """Training and validation text, uint8 of shape (characters,): every tenth file is for validation."""
    library = library or Path(os.__file__).parent
    texts: tuple[list[str], list[str]] = ([], [])
    total = 0
    for number, path in enumerate(source_files(library)):
        text = path.read_text(encoding="utf-8", errors="replace")
        texts[number % 10 == 9].append(text)
        total += len(text)
        if total >= limit:
            break
    return encode("".join(texts[False])), encode("".join(texts[True]))


def source_files(library: Path) -> Iterator[Path]:
    """The library's Python files, in the same order on every machine with the same Python."""
    for path in sorted(library.rglob("*.py"), key=lambda path: path.relative_to(library).as_posix()):
        if not (LEFT_OUT | TABLES).intersection(path.relative_to(library).parts):
            yield path


def encode(text: str) -> Tensor:
    """One uint8 token per character: its ASCII code, or UNKNOWN."""
    codes = torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32)
    return codes.masked_fill(codes >= VOCABULARY, UNKNOWN).to(torch.uint8)


class Windows:
    """Random windows of a text: batch number n of a seed is always the same one."""

    def __init__(self, text: Tensor, batch: int, context: int, seed: int, device: torch.device) -> None:
        self.text, self.batch, self.context, self.seed, self.device = text, batch, context, seed, device
        self.about = f"{len(text):,} characters"

    def number(self, n: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (the inputs one character later), int64 of shape (batch, context)."""
        dice = torch.Generator().manual_seed(self.seed * 1_000_003 + n)
        starts = torch.randint(len(self.text) - self.context, (self.batch, 1), generator=dice)
        windows = self.text[starts + torch.arange(self.context + 1)].long().to(self.device)
        return windows[:, :-1], windows[:, 1:]


class Images:
    """Waves in one of 8 directions and of one of two lengths, anywhere in the image, with noise.

    Those that are held back are of the same kinds, and none that is trained on.
    """

    def __init__(self, batch: int, pixels: int, seed: int, device: torch.device, *, held_back: bool = False) -> None:
        self.batch, self.pixels, self.seed, self.device, self.held_back = batch, pixels, seed, device, held_back
        self.about = f"images of {CLASSES} kinds without end"

    def number(self, n: int) -> tuple[Tensor, Tensor]:
        """Images, float32 of shape (batch, 1, pixels, pixels), and which wave each is, int64 of shape (batch,)."""
        dice = torch.Generator().manual_seed((self.seed * 1_000_003 + n) * 2 + self.held_back)
        targets = torch.randint(CLASSES, (self.batch,), generator=dice)
        begin = torch.rand(self.batch, 1, 1, generator=dice)
        noise = NOISE * torch.randn(self.batch, self.pixels, self.pixels, generator=dice)
        angle = (math.pi / DIRECTIONS * (targets % DIRECTIONS)).view(-1, 1, 1)
        wave = torch.tensor(WAVES)[targets // DIRECTIONS].view(-1, 1, 1)
        at = torch.arange(self.pixels)
        way = at.view(-1, 1) * angle.cos() + at * angle.sin()
        images = torch.sin(2 * math.pi * (wave * way + begin)) + noise
        return images.unsqueeze(1).to(self.device), targets.to(self.device)
