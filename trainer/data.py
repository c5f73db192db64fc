"""The text to learn: the source of Python's own standard library, one character one token. Nothing is downloaded.

A batch is a function of the seed and its number alone, so a resumed run needs one number to go on where it was.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

VOCABULARY = 128  # ASCII; everything else is the unknown character. A multiple of 8, for tensor cores.
UNKNOWN = 0
SIZE_LIMIT = 6_000_000  # characters
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
TABLES = {"encodings", "pydoc_data"}  # character tables and one huge string: no code to learn from


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


class Batches:
    """Random windows of a text: batch number n of a seed is always the same one."""

    def __init__(self, text: Tensor, batch: int, context: int, seed: int, device: torch.device) -> None:
        self.text, self.batch, self.context, self.seed, self.device = text, batch, context, seed, device

    def number(self, n: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (the inputs one character later), int64 of shape (batch, context)."""
        dice = torch.Generator().manual_seed(self.seed * 1_000_003 + n)
        starts = torch.randint(len(self.text) - self.context, (self.batch, 1), generator=dice)
        windows = self.text[starts + torch.arange(self.context + 1)].long().to(self.device)
        return windows[:, :-1], windows[:, 1:]
