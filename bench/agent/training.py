"""The training that is measured: a GPT of a given size under autocast, one step at a time, with at most one peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bench.common.trainer import GPT, Shape

if TYPE_CHECKING:
    from bench.agent.peers import Peer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BATCHES = 64
"""Different batches, over and over."""


@dataclass(frozen=True)
class Kind:
    """A training: precision (a key of DTYPES), sizes, device, threads of the CPU (0: as many as torch takes)."""

    precision: str
    shape: Shape
    batch: int = 8
    device: str = "cpu"
    threads: int = 0

    def __str__(self) -> str:
        with torch.device("meta"):
            size = GPT(self.shape).size()
        return f"{self.precision}, {size:,} weights"


class Training:
    """step() does one; `peer`, where there is one, is called in it as a program would call it."""

    def __init__(self, kind: Kind, seed: int = 0) -> None:
        torch.set_num_threads(kind.threads or _THREADS)
        torch.manual_seed(seed)
        self.kind = kind
        self.peer: Peer | None = None
        self.model = GPT(kind.shape).to(kind.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler(kind.device) if kind.precision == "fp16" else None
        size = (BATCHES, kind.batch, kind.shape.context + 1)
        self._data = torch.randint(kind.shape.vocabulary, size).to(kind.device)
        self._done = 0

    def step(self) -> None:
        kind, scaler, peer = self.kind, self.scaler, self.peer
        batch = self._data[self._done % BATCHES]
        self._done += 1
        with torch.autocast(kind.device, DTYPES[kind.precision], enabled=kind.precision != "fp32"):
            loss = self.model(batch[:, :-1], batch[:, 1:])
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if peer:
            peer.gradients()
        if scaler:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        if peer:
            peer.stepped(loss)

    def calibrate(self, steps: int) -> None:
        """Trains without a peer until the loss scale fits, which a young run pays for with skipped steps."""
        for _ in range(steps):
            self.step()


_THREADS = torch.get_num_threads()
