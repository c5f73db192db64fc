"""Data to train on: the source of Python's standard library, or images of waves. Nothing is downloaded.

A batch depends on the seed and its number alone, so one number is enough for a resumed run to continue.
"""

import math
import os
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

VOCABULARY = 128  # ASCII; every other character is UNKNOWN. A multiple of 8, for tensor cores.
UNKNOWN = 0
SIZE_LIMIT = 6_000_000  # characters
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
TABLES = {"encodings", "pydoc_data"}  # character tables and one huge string: no code to learn from

DIRECTIONS = 8
WAVES = (0.15, 0.3)  # per pixel
CLASSES = DIRECTIONS * len(WAVES)
NOISE = 0.3  # standard deviation; the waves reach from -1 to 1

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Inputs and targets."""


class Batches(Protocol):
    """Numbered batches without end, the same for the same seed."""

    about: str
    """Their source, in words."""

    def batch(self, number: int) -> Batch: ...


def load(library: Path | None = None, limit: int = SIZE_LIMIT) -> tuple[Tensor, Tensor]:
    """Training and validation text, uint8 of shape (characters,). Every tenth file is for validation."""
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


def source_files(library: Path) -> list[Path]:
    """The library's Python files, in the same order on every machine with the same Python."""
    found = []
    for folder, inner, files in os.walk(library):
        inner[:] = set(inner) - LEFT_OUT - TABLES
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(found, key=Path.as_posix)


def encode(text: str) -> Tensor:
    """One uint8 token per character: its ASCII code, or UNKNOWN."""
    codes = torch.frombuffer(bytearray(text.encode("utf-32-le")), dtype=torch.int32)
    return codes.masked_fill(codes >= VOCABULARY, UNKNOWN).to(torch.uint8)


class Windows:
    """Random windows of a text."""

    def __init__(self, text: Tensor, batch_size: int, context: int, seed: int, device: torch.device) -> None:
        self.text, self.batch_size, self.context, self.seed, self.device = text, batch_size, context, seed, device
        self.about = f"{len(text):,} characters"

    def batch(self, number: int) -> Batch:
        """Inputs, and as targets the inputs one character later: int64 of shape (batch, context)."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        starts = torch.randint(len(self.text) - self.context, (self.batch_size, 1), generator=generator)
        windows = self.text[starts + torch.arange(self.context + 1)].long().to(self.device)
        return windows[:, :-1], windows[:, 1:]


class Images:
    """Waves in one of 8 directions and of one of two lengths, anywhere in the image, with noise.

    Held-back images have the same classes, and none of them is trained on.
    """

    def __init__(
        self, batch_size: int, pixels: int, seed: int, device: torch.device, *, held_back: bool = False
    ) -> None:
        self.batch_size, self.pixels, self.seed, self.device = batch_size, pixels, seed, device
        self.held_back = held_back
        self.about = f"images of {CLASSES} classes without end"

    def batch(self, number: int) -> Batch:
        """Images, float32 of shape (batch, 1, pixels, pixels), and their classes, int64 of shape (batch,)."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) * 2 + self.held_back)
        targets = torch.randint(CLASSES, (self.batch_size,), generator=generator)
        phase = torch.rand(self.batch_size, 1, 1, generator=generator)
        noise = NOISE * torch.randn(self.batch_size, self.pixels, self.pixels, generator=generator)
        angle = (math.pi / DIRECTIONS * (targets % DIRECTIONS)).view(-1, 1, 1)
        wave = torch.tensor(WAVES)[targets // DIRECTIONS].view(-1, 1, 1)
        position = torch.arange(self.pixels)
        distance = position.view(-1, 1) * angle.cos() + position * angle.sin()
        images = torch.sin(2 * math.pi * (wave * distance + phase)) + noise
        return images.unsqueeze(1).to(self.device), targets.to(self.device)
