"""The measured training: a GPT of a given size under autocast, one step at a time, with at most one peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bench.common.trainer import GPT, Shape

if TYPE_CHECKING:
    from bench.agent.peers import Peer

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DISTINCT_BATCHES = 64
"""Batches that the training repeats in a cycle."""


@dataclass(frozen=True)
class TrainingSpec:
    """Size and set-up of a training.

    Attributes:
        precision: A key of DTYPES.
        threads: CPU threads; 0 for torch's default.
        compiled: Whether torch.compile compiles the model.
        tied: Whether the head shares the weight of the embedding, as in GPT-2.
    """

    precision: str
    shape: Shape
    batch: int = 8
    device: str = "cpu"
    threads: int = 0
    compiled: bool = False
    tied: bool = False

    def __str__(self) -> str:
        with torch.device("meta"):
            size = self.model().size()
        return f"{self.precision}, {size:,} weights{', compiled' if self.compiled else ''}"

    def model(self) -> GPT:
        """A new model, on torch's default device."""
        model = GPT(self.shape)
        if self.tied:
            model.head.weight = model.token.weight
        return model


TINY = Shape(vocabulary=32, context=8, layers=1, heads=2, width=8)
"""For dry runs, which check that everything runs."""

LONG_STEPS = (
    TrainingSpec("bf16", Shape(vocabulary=96, context=128, layers=4, heads=4, width=320)),
    TrainingSpec("fp16", Shape(vocabulary=96, context=80, layers=4, heads=4, width=64)),
)
"""About 80 ms a step on two cores. The float16 model is smaller: few CPUs multiply float16 natively."""

SHORT_STEPS = (
    TrainingSpec("bf16", Shape(vocabulary=96, context=16, layers=1, heads=2, width=64), batch=4, threads=1),
    TrainingSpec("fp16", Shape(vocabulary=96, context=16, layers=1, heads=2, width=40), batch=2, threads=1),
    TrainingSpec("fp32", Shape(vocabulary=96, context=48, layers=1, heads=2, width=64), batch=4, threads=1),
)
"""About 2 ms a step on one core."""


class Training:
    """A model with its optimizer; each step() calls the current peer, if there is one, as a program would."""

    def __init__(self, spec: TrainingSpec, seed: int = 0) -> None:
        torch.set_num_threads(spec.threads or _DEFAULT_THREADS)
        torch.manual_seed(seed)
        self.spec = spec
        self.peer: Peer | None = None
        with torch.device(spec.device):  # random numbers of 100 million weights take the host seconds
            self.model = spec.model()
        self._called = torch.compile(self.model) if spec.compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler(spec.device) if spec.precision == "fp16" else None
        size = (DISTINCT_BATCHES, spec.batch, spec.shape.context + 1)
        self._data = torch.randint(spec.shape.vocabulary, size).to(spec.device)
        self._steps_done = 0

    def step(self) -> None:
        spec, scaler, peer = self.spec, self.scaler, self.peer
        batch = self._data[self._steps_done % DISTINCT_BATCHES]
        self._steps_done += 1
        with torch.autocast(spec.device, DTYPES[spec.precision], enabled=spec.precision != "fp32"):
            loss = self._called(batch[:, :-1], batch[:, 1:])
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if peer:
            peer.on_gradients()
        if scaler:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        if peer:
            peer.on_step_end(loss)

    def calibrate(self, steps: int) -> None:
        """Trains without a peer until the loss scale fits; a new run skips steps until then."""
        for _ in range(steps):
            self.step()


_DEFAULT_THREADS = torch.get_num_threads()
