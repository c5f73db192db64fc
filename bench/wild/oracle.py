"""Records the true numbers of a program: loss, scale, weights and gradients of every step.

The recorder is called by lines of the program's recorded text, in a run without Ammeter.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

SMALLEST_NORMAL = 2.0**-14
"""The smallest normal number of float16."""

HEALTHY_GROWTH = 1.3
"""A healthy program's last losses are at most this multiple of its first ones."""

HEALTHY_JUMP = 100.0
"""No loss of a healthy program is this multiple of its first one, even if it falls again."""

_NOTHING: Mapping[str, Any] = {"gradients": "", "norms": [], "bad_earlier": []}
"""What a recorder knows of the gradients of a step that has no backward pass yet."""

HALF_DTYPES = (torch.float16, torch.bfloat16)

_WRAPPERS = re.compile(r"^(_forward_module|network)\.")
"""What precedes the names of a model that a framework has wrapped."""


class Row(msgspec.Struct, frozen=True):
    """A step. NaN is None.

    Attributes:
        scale: The loss scale after the step.
        weights, gradients: Digests.
        bad_weights, bad_gradients, bad_buffers: Names of tensors with NaN or Inf.
        bad_applied: The same of the gradients that were left when the step was over.
        bad_earlier: The same of the gradients of earlier evaluations of a closure.
        used_scale: The loss scale that the gradients were multiplied by.
        norms: Norms of all gradients: after each backward pass, after the division by the scale, and after the step.
        largest: The tensor with the largest gradient norm.
        absmax: The largest |gradient| after backward, still scaled.
        tensors: Number of tensors with a gradient.
        elements, zeros, subnormals: Numbers of gradient elements; subnormals are those of float16.
        moved: Norm of the change of the weights by optimizers, as a share of their norm before.
        cosine: Of the gradients and those of the step before.
        applied: Number of optimizers that changed their weights; a fused one may skip inside its step().
        half_state: Whether an optimizer has state in half precision after the step.
    """

    step: int
    loss: float | None
    scale: float
    weights: str
    gradients: str
    bad_weights: list[str] = []
    bad_gradients: list[str] = []
    bad_buffers: list[str] = []
    bad_applied: list[str] = []
    bad_earlier: list[list[str]] = []
    used_scale: float | None = None
    norms: list[float | None] = []
    largest: str = ""
    absmax: float | None = None
    tensors: int = 0
    elements: int = 0
    zeros: int = 0
    subnormals: int = 0
    moved: float | None = None
    cosine: float | None = None
    applied: int | None = None
    half_state: bool = False

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
        if any(row.bad_weights for row in self.rows):
            return "its weights are NaN or Inf at times"
        quarter = max(1, len(self.rows) // 4)
        first, last_mean = _mean(self.rows[:quarter]), _mean(self.rows[-quarter:])
        if last_mean > HEALTHY_GROWTH * first + 0.1:
            return f"its loss grows from {first:.3g} to {last_mean:.3g}"
        start = self.rows[0].loss
        highest = max((row.loss for row in self.rows if row.loss is not None), default=0.0)
        if start is not None and highest > HEALTHY_JUMP * max(abs(start), 0.1):
            return f"its loss rises from {start:.3g} to {highest:.3g}"
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
        self._gradients: dict[str, Any] = dict(_NOTHING)
        self._model: torch.nn.Module | None = None
        self._weights_before = torch.zeros(0)
        self._moved = 0.0
        self._earlier: torch.Tensor | None = None
        self._present: torch.Tensor | None = None
        self._named = False
        self._applied = 0
        self._half_state = False
        self._weights_unscaled = torch.zeros(0)
        self._hooks = [
            register_optimizer_step_pre_hook(self._stepping),
            register_optimizer_step_post_hook(self._stepped),
        ]

    def close(self) -> None:
        """Ends the recording in a process that goes on."""
        self._file.close()
        for hook in self._hooks:
            hook.remove()

    def _stepping(self, _: torch.optim.Optimizer, __: Any, ___: Any) -> None:
        if self._model is not None:
            self._weights_before = _flat(self._model.parameters())

    def _stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # GradScaler sets it for a fused optimizer
        self._applied += found_inf is None or not float(found_inf)
        self._half_state = self._half_state or _has_half_state(optimizer)
        if self._model is not None:
            after, before = _flat(self._model.parameters()), self._weights_before
            share = float((after - before).norm() / before.norm()) if after.shape == before.shape else math.nan
            self._moved = math.hypot(self._moved, share)

    def gradients(self, model: torch.nn.Module, scale: float) -> None:
        """Notes the gradients before they are unscaled. A closure does so once per evaluation."""
        found, self._model = _gradients_of(model), model
        norms = {name: float(gradient.double().norm()) for name, gradient in found.items()}  # float32 overflows at 2e19
        self._present = _flat(found.values())
        sizes = self._present.abs()
        earlier = [self._gradients["bad_gradients"]] if "bad_gradients" in self._gradients else []
        self._gradients = {
            "gradients": _digest(found.values()),
            "bad_gradients": _nonfinite(found),
            "bad_earlier": [*self._gradients["bad_earlier"], *earlier],
            "used_scale": float(scale),
            "norms": [*self._gradients["norms"], float(self._present.double().norm())],
            "largest": max(norms, key=lambda name: norms[name], default=""),
            "absmax": float(sizes.max()) if len(sizes) else None,
            "tensors": len(found),
            "elements": len(sizes),
            "zeros": int((sizes == 0).sum()),
            "subnormals": int(((sizes > 0) & (sizes < SMALLEST_NORMAL)).sum()),
        }

    def unscaled(self, model: torch.nn.Module) -> None:
        """Notes the norm before a clip, and the weights before the step."""
        self._gradients["norms"] = [*self._gradients["norms"], _norm(model)]
        self._weights_unscaled = _flat(model.parameters())

    def stepped(self, model: torch.nn.Module) -> None:
        """Notes a step that runs no hooks, as one by torch._foreach_add_ does. NaN shows no change."""
        before, after = self._weights_unscaled, _flat(model.parameters())
        if (
            not self._applied
            and after.shape == before.shape
            and not torch.equal(after.nan_to_num(), before.nan_to_num())
        ):
            self._applied, self._moved = 1, float((after - before).norm() / before.norm())

    def step(self, step: int, loss: Any, model: torch.nn.Module, scale: float) -> None:
        if not self._named:
            self._named = True
            parts = (model.named_modules(), model.named_parameters(), model.named_buffers())
            names = [own_name(name) for named in parts for name, _ in named]
            self._file.write(msgspec.json.encode(names) + b"\n")
        value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        weights = {own_name(name): weight for name, weight in model.named_parameters()}
        noted = self._gradients
        row = Row(
            step,
            value if math.isfinite(value) else None,
            float(scale),
            _digest(weights.values()),
            bad_weights=_nonfinite(weights),
            bad_buffers=_nonfinite({own_name(name): buffer for name, buffer in model.named_buffers()}),
            bad_applied=_nonfinite(_gradients_of(model)),
            moved=self._moved,
            cosine=self._cosine(),
            applied=self._applied,
            half_state=self._half_state,
            **{**noted, "norms": [*noted["norms"], _norm(model)]},
        )
        self._gradients, self._applied, self._moved = dict(_NOTHING), 0, 0.0
        self._file.write(msgspec.json.encode(row) + b"\n")

    def _cosine(self) -> float | None:
        earlier, self._earlier, self._present = self._earlier, self._present, None
        if earlier is None or self._earlier is None or earlier.shape != self._earlier.shape:
            return None
        return float(torch.nn.functional.cosine_similarity(earlier, self._earlier, dim=0))


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


def own_name(name: str) -> str:
    """The name of a module or tensor without the wrapper of a framework."""
    return _WRAPPERS.sub("", name)


def _has_half_state(optimizer: torch.optim.Optimizer) -> bool:
    values = (value for state in optimizer.state.values() for value in state.values())
    return any(isinstance(value, torch.Tensor) and value.dtype in HALF_DTYPES for value in values)


def _gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    weights = model.named_parameters()
    return {own_name(name): weight.grad for name, weight in weights if weight.grad is not None}


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    parts = [tensor.detach().float().reshape(-1) for tensor in tensors]
    return torch.cat(parts).clone() if parts else torch.zeros(0)


def _norm(model: torch.nn.Module) -> float:
    return float(_flat(_gradients_of(model).values()).double().norm())


def _digest(tensors: Any) -> str:
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        total.update(tensor.detach().float().contiguous().numpy().tobytes())
    return total.hexdigest()


def _nonfinite(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in tensors.items() if not torch.isfinite(tensor.detach()).all()]
