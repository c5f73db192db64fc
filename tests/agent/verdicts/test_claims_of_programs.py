"""Each claim about a real program has its evidence in the finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.training import watching
from tests.agent.verdicts.claims import unfounded


class Net(torch.nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16) if norm else torch.nn.Identity()
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(torch.relu(self.norm(self.body(x))))
        return scores


Spoil = Callable[[int, Net, torch.Tensor, torch.Tensor], None]


def trained(folder: Path, spoil: Spoil, steps: int = 40, scale: float = 65536.0, norm: bool = False) -> list[Finding]:
    """What is found of a real program with a real scaler on the CPU."""
    torch.manual_seed(3)
    model = Net(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with watching(folder, model, optimizer, scaler) as seen:
        for step in range(steps):
            x, y = torch.randn(6, 8), torch.randn(6, 2)
            spoil(step, model, x, y)
            with torch.autocast("cpu", torch.float16):
                given = model(x)
            loss = torch.nn.functional.mse_loss(given.float(), y)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return list(seen.findings().values())


def a_sample_far_away(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    """Its gradients overflow float16 once they are scaled, and would not without a scale."""
    if step == 20:
        y[3] = 3e4


def six_batches_far_away(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if 20 <= step < 27:
        y[3] = 3e4


def a_target_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if 20 <= step < 23:
        y[2, 1] = math.nan


def an_input_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if step == 20:
        x[2, 1] = math.nan


def a_weight_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    if step == 20:
        with torch.no_grad():
            model.head.weight[0, 0] = math.nan


def a_buffer_of_nan(step: int, model: Net, x: torch.Tensor, y: torch.Tensor) -> None:
    """As frozen running statistics: the weights stay clean and every loss is NaN."""
    if step == 20:
        model.norm.eval()
        dict(model.norm.named_buffers())["running_mean"][1] = math.nan


SPOILT = (a_sample_far_away, six_batches_far_away, a_target_of_nan, an_input_of_nan, a_weight_of_nan, a_buffer_of_nan)


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda value: value.__name__)
@pytest.mark.parametrize("scale", [8192.0, 65536.0])
def test_the_texts_of_a_real_program_claim_only_what_was_seen(spoil: Spoil, scale: float, tmp_path: Path) -> None:
    found = trained(tmp_path, spoil, scale=scale, norm=True)
    assert [] == [claim for finding in found for claim in unfounded(finding)]
    texts = " ".join(f"{finding.title} {finding.cause} {finding.fix}" for finding in found)
    if spoil in (a_sample_far_away, six_batches_far_away):
        assert "not an overflow" not in texts
    if spoil is not a_weight_of_nan:
        assert "weights contain NaN" not in texts.replace("Weights", "weights")
    if spoil is not a_sample_far_away:
        assert found


def test_a_real_target_of_nan_is_not_blamed_on_the_model(tmp_path: Path) -> None:
    told = {finding.verdict: finding for finding in trained(tmp_path, a_target_of_nan)}
    assert ["nonfinite-loss"] == [
        finding.finding.verdict for finding in explain([("it", finding) for finding in told.values()])
    ]
    cause = told["nonfinite-loss"].cause
    assert "originated" not in cause
    assert "received a NaN or Inf from outside its graph: a target, a mask or a detached result" in cause


def test_a_real_buffer_of_nan_is_named_as_one(tmp_path: Path) -> None:
    told = {finding.verdict: finding for finding in trained(tmp_path, a_buffer_of_nan, norm=True)}
    assert "norm.running_mean" == told["nonfinite-loss"].evidence["nonfinite_buffer"]
    assert "nonfinite-weights" not in told
