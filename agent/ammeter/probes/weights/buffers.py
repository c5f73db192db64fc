"""Reports NaN and Inf in floating-point buffers of the model, such as running statistics.

A forward pass writes running statistics even if the scaler skips its step, and training does not read them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules import batchnorm

from ammeter.tensors import async_copy
from ammeter.tensors.slices import readable
from ammeter.torch_hooks.targets import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

INTERVAL_STEPS = 20
"""Minimum steps between two readings without a reason: a step writes a small part of a running statistic."""

MAX_ELEMENTS = 2**16
"""Elements of a buffer that is read without a reason. Statistics of channels are smaller, caches are larger."""

MAX_NAMED_BUFFERS = 20
"""Buffers that an event names, so that it stays small; their number is always reported."""


_NORMALIZATION: type = getattr(batchnorm, "_NormBase", torch.nn.BatchNorm2d)


class Buffers:
    """Reads the buffers of the watched models.

    A mask may contain -Inf by design, so a buffer counts as damaged only if an earlier reading was finite, or if it is
    a running statistic of a normalization layer.
    """

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._next_step = 0
        self._finite: dict[str, int] = {}
        self._bad: list[str] = []
        self._statistics: set[str] = set()

    def sample(self, row: Row) -> None:
        """Reads the small buffers, at most once in INTERVAL_STEPS."""
        if row.step >= self._next_step:
            self._next_step = row.step + INTERVAL_STEPS
            self._read(row, MAX_ELEMENTS)

    def read(self, row: Row) -> None:
        """Reads all buffers after a step whose loss or norm is not finite."""
        self._read(row, None)

    def finish(self, row: Row) -> None:
        for names, arrived in row.raw.get("buffers", ()):
            self._judge(row, names, arrived)

    def _read(self, row: Row, max_elements: int | None) -> None:
        places: dict[Any, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        for name, buffer, is_statistic in self._present():
            numbers = readable(buffer)
            if numbers is None or numbers.is_nested or numbers.dtype.itemsize == 1:  # no norm of 8-bit numbers exists
                continue
            if max_elements is None or numbers.numel() <= max_elements:
                places[numbers.device, numbers.dtype].append((name, numbers))
                if is_statistic:
                    self._statistics.add(name)
                    self._finite.setdefault(name, -1)
        for named in places.values():
            norms = torch._foreach_norm([numbers for _, numbers in named], torch.inf)
            transfer = async_copy.of(torch.stack([norm.reshape(()) for norm in norms]))
            names = [name for name, _ in named]
            if transfer.on_host:
                self._judge(row, names, transfer)
            else:
                present = self._session.row
                present.raw.setdefault("buffers", []).append((names, transfer))
                present.later("buffers", transfer)

    def _present(self) -> Iterator[tuple[str, torch.Tensor, bool]]:
        """Yields (name, buffer, whether it is a running statistic of a normalization layer)."""
        models = [model for ref in self._session.watched.models if (model := ref()) is not None]
        for number, model in enumerate(models):
            for path, module in model.named_modules():
                parts = [f"model{number}" if number else "", path]
                for key, buffer in module._buffers.items():
                    if buffer is not None and buffer.is_floating_point():
                        name = plain_name(".".join([*filter(None, parts), key]))
                        yield name, buffer, isinstance(module, _NORMALIZATION)

    def _judge(self, row: Row, names: Sequence[str], arrived: async_copy.Transfer) -> None:
        is_finite = np.isfinite(arrived.array())
        bad = [name for name, fine in zip(names, is_finite, strict=True) if not fine and name in self._finite]
        known = sorted({*(name for name in self._bad if name not in names), *bad})
        if known and known != self._bad:
            named = sorted(known, key=lambda name: (name not in self._statistics, name in self._bad))
            last = min(self._finite[name] for name in known)
            data = {
                "tensors": named[:MAX_NAMED_BUFFERS],
                "count": len(known),
                "last_finite": last if last >= 0 else None,
                "statistics": named[0] in self._statistics,
            }
            row.events.append(("buffers.nonfinite", data))
        elif self._bad and not known:
            row.events.append(("buffers.finite", {}))
        self._bad = known
        self._finite.update((name, row.step) for name, fine in zip(names, is_finite, strict=True) if fine)
