"""loss-in-half fires where the loss itself is in half precision, and names the line that computed it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from tests.agent.stream_builder import Stream, mistaken
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken
from tests.agent.training import Model, line_of, watching

NAME = "loss-in-half"

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@broken
def loss_in_half() -> Stream:
    return mistaken("loss_in_half", dtype="bfloat16", operator="mean", computed=True)


def margin(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    right = logits.gather(1, targets[:, None])
    return (logits - right + 1).clamp(min=0).mean()


def halved(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (cross_entropy(logits.float(), targets) / 2).bfloat16()


def cast_back(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = logits.logsumexp(-1).mean()
    return loss.float() / 2


def hinge(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The loss of a critic: its gradients are constants, which half precision does not change."""
    return torch.relu(1 - scores[:, :1]).mean() + torch.relu(1 + scores[:, 1:]).mean()


def critic(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return -scores.mean()


def softened(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(-scores).mean()


def ratio(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As in reinforcement learning: a ratio of probabilities, times advantages in float32."""
    new = torch.log_softmax(logits, -1).gather(-1, targets[:, None]).squeeze(-1)
    weighted = (new - new.detach()).exp() * torch.randn(len(targets))
    return -torch.min(weighted, weighted.clamp(-1, 1)).mean()


def distilled(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        student = torch.log_softmax(logits, -1)
        return -(student.float() * torch.softmax(torch.randn(logits.shape), -1)).sum(-1).mean()


def ratio_in_float32(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ratio(logits.float(), targets)


def in_float32(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return margin(logits.float(), targets)


def of_one_number(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A number of the model in half precision is no loss."""
    return mse_loss(logits[0, 0].float(), targets[0].float()) * 0.5


def trained(folder: Path, loss_of: Loss, steps: int = 12, *, gradients: bool = False) -> Any:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weights = list(model.parameters())
    with watching(folder, model, optimizer) as seen:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model(torch.randn(8, 12)), torch.randint(3, (8,)))
            if gradients:
                for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    weight.grad = gradient
            else:
                optimizer.zero_grad()
                torch.autograd.backward(loss)
            optimizer.step()
    assert not torch.is_anomaly_enabled()
    return seen


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("loss_of", "text", "operator"),
    [
        (margin, ".mean()", "mean"),
        (halved, ".bfloat16()", "to"),
        (cast_back, ".mean()", "mean"),
        (softened, ".mean()", "mean"),
        (ratio, "torch.log_softmax", "log_softmax"),
        (distilled, "torch.log_softmax", "log_softmax"),
    ],
)
def test_a_loss_in_half_precision_is_found_with_its_line(
    loss_of: Loss, text: str, operator: str, gradients: bool, tmp_path: Path
) -> None:
    finding = trained(tmp_path, loss_of, gradients=gradients).findings()[NAME]
    assert operator == finding.evidence["operator"]
    assert str(finding.caller).endswith(line_of(loss_of, text))
    assert 0 == finding.first_step


@pytest.mark.parametrize("loss_of", [in_float32, ratio_in_float32, of_one_number, hinge, critic])
def test_losses_in_float32_and_linear_losses_are_silent(loss_of: Loss, tmp_path: Path) -> None:
    assert NAME not in trained(tmp_path, loss_of).findings()


@pytest.mark.parametrize("in_half", [{8}, {8, 9}, {8, 9, 12, 13}])
def test_one_or_two_losses_in_half_precision_are_silent(in_half: set[int], tmp_path: Path) -> None:
    steps = iter(range(30))
    seen = trained(tmp_path, lambda *of: (margin if next(steps) in in_half else in_float32)(*of), steps=30)
    assert NAME not in seen.findings()


def test_a_late_change_begins_at_its_first_step(tmp_path: Path) -> None:
    steps = iter(range(40))
    seen = trained(tmp_path, lambda *of: (margin if next(steps) >= 21 else in_float32)(*of), steps=40)
    assert 21 == seen.findings()[NAME].first_step


class WithLoss(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


def test_a_loss_that_the_model_computes_is_found_at_backward(tmp_path: Path) -> None:
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(20):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(8, 12))
            optimizer.zero_grad()
            torch.autograd.backward(loss.clone())
            optimizer.step()
    finding = seen.findings()[NAME]
    assert str(finding.caller).endswith(
        line_of(test_a_loss_that_the_model_computes_is_found_at_backward, "torch.autograd.backward(")
    )
    assert finding.cause.startswith("The loss of backward() at ")


def test_the_setting_of_the_anomaly_detection_is_the_programs_own(tmp_path: Path) -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        seen_settings = []

        def observed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            seen_settings.append((torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()))
            return margin(logits, targets)

        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with watching(tmp_path, model, optimizer) as seen:
            for _ in range(8):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = observed(model(torch.randn(8, 12)), torch.randint(3, (8,)))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
        assert torch.is_anomaly_enabled()
    assert {(True, False)} == set(seen_settings)
    assert NAME in seen.findings()


def test_a_check_for_nan_that_the_program_switched_off_stays_off(tmp_path: Path) -> None:
    with torch.autograd.set_detect_anomaly(False, check_nan=False):
        assert NAME in trained(tmp_path, margin).findings()
        assert not torch.is_anomaly_check_nan_enabled()


def test_the_words_have_the_operator_and_the_line() -> None:
    finding = findings(loss_in_half())[NAME]
    assert "The loss is computed in bfloat16" == finding.title
    assert finding.cause.startswith("The loss computed at loop/train.py:120 is bfloat16")
    assert "Its last operator, mean, returned bfloat16." in finding.cause


def test_log_probabilities_have_words_of_their_own() -> None:
    stream = mistaken("loss_in_half", dtype="float16", operator="log_softmax", computed=True)
    finding = findings(stream)[NAME]
    assert "The log-probabilities of the loss are computed in float16" == finding.title
    assert "log-probabilities that log_softmax at loop/train.py:120 returned in float16" in finding.cause
    assert finding.fix.startswith("Pass logits.float() to log_softmax at loop/train.py:120")
