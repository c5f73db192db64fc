"""What the tests of integrations train, and what they check of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter import journal
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import View
from ammeter.wire.frames import Hello
from tests.agent import stream_builder, stream_judgement
from tests.agent.training import stream

STEPS, BATCH, WIDTH = 24, 4, 8
BAD_FROM = 10
"""First step with a planted fault, in programs that have one."""


class Network(torch.nn.Module):
    """Returns its loss, as models of transformers do. From a call on, its loss is NaN."""

    def __init__(self, bad_from: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(WIDTH, 16), torch.nn.Linear(16, 3)
        self.bad_from, self.calls = bad_from, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.second(torch.relu(self.first(x)))
        if self.training:
            if self.bad_from is not None and self.calls >= self.bad_from:
                logits = logits * torch.nan
            self.calls += 1
        return {"loss": torch.nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


def samples(count: int = BATCH * STEPS) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": x, "labels": x[:3].argmax()} for x in torch.randn(count, WIDTH, generator=generator)]


def batches(count: int = BATCH * STEPS) -> Any:
    loaded: Any = samples(count)
    return torch.utils.data.DataLoader(loaded, batch_size=BATCH)


def result(model: torch.nn.Module) -> dict[str, Any]:
    """Copies the weights, and the state of the random numbers after the training."""
    return {**{name: tensor.clone() for name, tensor in model.state_dict().items()}, "rng": torch.get_rng_state()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


class Recorded:
    """The only run of a folder."""

    def __init__(self, folder: Path) -> None:
        (run,) = runs(folder)
        self.rows, self.frames = stream(run, folder)
        self.hello = next(frame for frame in self.frames if isinstance(frame, Hello))

    @property
    def settings(self) -> Any:
        """What the framework has handed over of its configuration."""
        return self.hello.config["framework"]

    def findings(self) -> dict[str, Finding]:
        written = stream_builder.Stream()
        written.frames = self.frames
        return stream_judgement.findings(written)

    def logged(self, name: str) -> dict[int, float]:
        """Step -> value, where there is one."""
        column = View.scalar(self.rows, name)
        pairs = zip(self.rows.steps.tolist(), column.tolist(), strict=True)
        return {step: value for step, value in pairs if value == value}


def runs(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if journal.streams(path)] if folder.exists() else []
