"""Records the true numbers of a program: loss, scale, weights and gradients of every step.

The recorder is called by lines of the program's recorded text, in a run without Ammeter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

HEALTHY_GROWTH = 1.3
"""A healthy program's last losses are at most this multiple of its first ones."""


class Row(msgspec.Struct, frozen=True):
    """A step. weights, gradients: digests. bad_weights, bad_gradients: names of tensors with NaN or Inf."""

    step: int
    loss: float | None
    scale: float
    weights: str
    gradients: str
    bad_weights: list[str] = []
    bad_gradients: list[str] = []

    @property
    def loss_is_finite(self) -> bool:
        return self.loss is not None


class Recording(msgspec.Struct, frozen=True):
    """A bare run. code: exit code, None after the time limit. digests: the final weights that it printed.

    other_rows: The rows of rank 1, if there is one.
    """

    rows: list[Row]
    code: int | None
    digests: list[str]
    output: str
    names: list[str] = []
    other_rows: list[Row] = []

    @property
    def trouble(self) -> str:
        """Why this is no healthy program, or ''."""
        if self.code != 0:
            last = self.output.strip().splitlines()[-1:] or ["no output"]
            return f"ended with {self.code}: {last[0][:160]}"
        if not self.rows:
            return "took no step"
        if not self.rows[-1].loss_is_finite or self.rows[-1].bad_weights:
            return "its loss or weights end as NaN or Inf"
        quarter = max(1, len(self.rows) // 4)
        first, last_mean = _mean(self.rows[:quarter]), _mean(self.rows[-quarter:])
        if last_mean > HEALTHY_GROWTH * first + 0.1:
            return f"its loss grows from {first:.3g} to {last_mean:.3g}"
        if len({row.weights for row in self.rows[-quarter:]}) == 1 and quarter > 1:
            return "its weights do not move at the end"
        return ""


def _mean(rows: list[Row]) -> float:
    losses = [row.loss for row in rows if row.loss is not None]
    return sum(losses) / len(losses) if losses else math.inf


def symptom(broken: Recording, twin: Recording) -> int | None:
    """The first step whose numbers differ from those of the twin, or that was the last; None if none does."""
    ranks = (_first_difference(broken.rows, twin.rows), _first_difference(broken.other_rows, twin.other_rows))
    return min((step for step in ranks if step is not None), default=None)


def _first_difference(broken: list[Row], twin: list[Row]) -> int | None:
    for row, other in zip(broken, twin, strict=False):
        if _numbers(row) != _numbers(other):
            return row.step
    if len(broken) < len(twin):
        return broken[-1].step if broken else twin[0].step
    return None


def _numbers(row: Row) -> tuple[object, ...]:
    return row.loss, row.scale, row.weights, row.gradients


class Recorder:
    """Writes one line per step, so that a killed program leaves what it did."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)
        self._gradients: tuple[str, list[str]] = ("", [])
        self._named = False

    def gradients(self, model: torch.nn.Module) -> None:
        """Notes the gradients before they are unscaled."""
        found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self._gradients = _digest(found.values()), _nonfinite(found)

    def step(self, step: int, loss: Any, model: torch.nn.Module, scale: float) -> None:
        if not self._named:
            self._named = True
            parts = (model.named_modules(), model.named_parameters(), model.named_buffers())
            names = [name for named in parts for name, _ in named]
            self._file.write(msgspec.json.encode(names) + b"\n")
        value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        weights = dict(model.named_parameters())
        row = Row(
            step,
            value if math.isfinite(value) else None,
            float(scale),
            _digest(weights.values()),
            self._gradients[0],
            _nonfinite(weights),
            self._gradients[1],
        )
        self._file.write(msgspec.json.encode(row) + b"\n")


def read(file: Path) -> tuple[list[Row], list[str]]:
    """The rows of a recorder, and the names of modules and tensors."""
    rows: list[Row] = []
    names: list[str] = []
    for line in file.read_bytes().splitlines() if file.exists() else []:
        if line.startswith(b"["):
            names = msgspec.json.decode(line, type=list[str])
        else:
            rows.append(msgspec.json.decode(line, type=Row))
    return rows, names


def _digest(tensors: Any) -> str:
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        total.update(tensor.detach().float().contiguous().numpy().tobytes())
    return total.hexdigest()


def _nonfinite(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if not torch.isfinite(tensor.detach()).all()]
