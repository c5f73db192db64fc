"""masked-labels names a loss without targets, and stays silent while one target is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ammeter.verdicts.causality import explain
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken
from tests.agent.streams_values import born
from tests.agent.training import watching

NAME = "masked-labels"
IGNORED = -100
ONSET_STEP = 6

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@broken
def masked_labels() -> Stream:
    """Since a change of the data each target is the ignored index."""
    stream = warm().bad(65536, last=5, loss=math.nan)
    born(stream, module="", op="NllLossBackward0", reason="targets", confidence="graph", caller="loop/train.py:8")
    return stream.bad(32768, last=5, loss=math.nan)


def per_target(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)


def smoothed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets, label_smoothing=0.1)


def of_kept_rows(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[targets != IGNORED], targets[targets != IGNORED])


def selected(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return per_target(logits, targets)[targets != IGNORED].mean()


def multiplied(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mask = (targets != IGNORED).float()
    return (per_target(logits, targets) * mask).sum() / mask.sum()


def sum_by_count(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets, reduction="sum") / int((targets != IGNORED).sum())


def gathered(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mask = targets != IGNORED
    losses = -functional.log_softmax(logits, -1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return (losses * mask).sum() / mask.sum()


def unselected(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A mean of log-probabilities, such as an entropy, of which no target is chosen."""
    mask = (targets != IGNORED)[:, None]
    return -(functional.log_softmax(logits, -1) * mask).sum() / mask.sum()


def clamped(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return per_target(logits, targets).sum() / (targets != IGNORED).sum().clamp(min=1)


def of_kept_outputs(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A number of the outputs that no operator marks as a loss of targets."""
    return logits.square()[targets != IGNORED].mean()


def with_infinite_logit(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    hidden = torch.full_like(logits, -torch.inf).scatter(1, targets.clamp(min=0)[:, None] * 0 + 1, 0)
    return per_target(logits + hidden, targets.clamp(min=0) * 0).mean()


def counted(count: int, of: int, **more: Any) -> Stream:
    """A run of which so many micro-batches have no target, in accumulated steps of eight."""
    stream = warm(of // 8)
    data = {"count": count, "of": of, "caller": "loop/train.py:9", "first_step": 2, "nan": False}
    return stream.event("targets.missing", **data | more)


def trained(folder: Path, loss_of: Loss, kept: int, scaled: bool = True) -> list[str]:
    """Trains with `kept` targets per batch from ONSET_STEP on; returns the causes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    with watching(folder, model, optimizer, scaler) as seen:
        for step in range(12):
            targets = torch.randint(3, (6,))
            if step >= ONSET_STEP:
                targets[kept:] = IGNORED
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(loss_of(model(torch.randn(6, 5)), targets)))
            scaler.step(optimizer)
            scaler.update()
    found = seen.findings()
    if NAME in found:
        assert ONSET_STEP == found[NAME].first_step
        assert "test_masked_labels.py:" in str(found[NAME].caller)
    return [cause.finding.verdict for cause in explain([("stream", finding) for finding in found.values()])]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(
    "loss_of", [functional.cross_entropy, smoothed, of_kept_rows, selected, multiplied, sum_by_count, gathered]
)
def test_a_mean_over_no_targets_is_the_one_cause(loss_of: Loss, scaled: bool, tmp_path: Path) -> None:
    assert [NAME] == trained(tmp_path, loss_of, kept=0, scaled=scaled)


@pytest.mark.parametrize("loss_of", [functional.cross_entropy, smoothed, selected, multiplied, sum_by_count, gathered])
def test_a_batch_with_one_target_left_is_silent(loss_of: Loss, tmp_path: Path) -> None:
    assert [] == trained(tmp_path, loss_of, kept=1)


def test_a_mean_by_at_least_one_without_targets_in_half_of_the_batches_is_the_one_cause(tmp_path: Path) -> None:
    assert [NAME] == trained(tmp_path, clamped, kept=0)
    assert [] == trained(tmp_path / "kept", clamped, kept=1)


@pytest.mark.parametrize("loss_of", [of_kept_outputs, unselected])
def test_a_mean_over_none_without_a_criterion_is_another_fault(loss_of: Loss, tmp_path: Path) -> None:
    causes = trained(tmp_path, loss_of, kept=0)
    assert causes
    assert NAME not in causes


def test_an_infinite_loss_per_target_is_no_loss_without_targets(tmp_path: Path) -> None:
    causes = trained(tmp_path, with_infinite_logit, kept=6)
    assert causes
    assert NAME not in causes


def test_the_words_have_step_operator_and_line() -> None:
    finding = findings(masked_labels())[NAME]
    assert ("ticket", "loop/train.py:8") == (finding.severity, finding.caller)
    assert "the loss (NllLoss) is a mean over no targets" in finding.cause
    assert finding.cause.endswith("loop/train.py:8 passed that loss on to backward().")


def test_another_reason_is_no_loss_without_targets() -> None:
    stream = born(warm().bad(65536, last=5, loss=math.nan), module="", op="DivBackward0", reason="row")
    assert NAME not in findings(stream)


def test_one_percent_of_the_micro_batches_is_a_ticket_with_the_share() -> None:
    finding = findings(counted(4, 400))[NAME]
    assert ("ticket", "loop/train.py:9", 2, 49) == (
        finding.severity,
        finding.caller,
        finding.first_step,
        finding.opened_step,
    )
    assert "1.0 % of the micro-batches have no targets" == finding.title
    assert "4 micro-batches had no target, which is 1.0 % of the 400 that were examined" in finding.cause
    assert (4, 400) == (finding.evidence["without_targets"], finding.evidence["examined"])


@pytest.mark.parametrize(("count", "of"), [(4, 408), (3, 48), (16, 4000)])
def test_a_smaller_share_and_too_few_are_silent(count: int, of: int) -> None:
    assert NAME not in findings(counted(count, of))


def test_a_share_that_falls_below_one_percent_is_over() -> None:
    stream = counted(4, 400)
    for _ in range(50):
        stream.good(65536)
    stream.event("targets.missing", count=7, of=800, caller="", first_step=2, nan=False)
    finding = findings(stream)[NAME]
    assert not finding.active
    assert 49 == finding.opened_step


def test_passes_that_are_given_up_are_counted_by_those_whose_loss_was_found() -> None:
    finding = findings(counted(5, 200, given_up=9, searched=5, caller="", nan=True))[NAME]
    assert "9 of 200 forward passes that were observed (4.5 %)" in finding.cause
    assert "Of 5 of them the loss was searched, and in 5 it had no target" in finding.cause
    assert "leave out" not in finding.fix
    assert NAME not in findings(counted(4, 400, given_up=9, searched=16))


def test_a_loss_that_was_nan_remains_the_finding_below_one_percent() -> None:
    stream = masked_labels()
    stream.event("targets.missing", count=5, of=1000, caller="", first_step=40, nan=True)
    finding = findings(stream)[NAME]
    assert finding.active
    assert "A loss of step 40 has no targets" == finding.title
    assert "5 micro-batches had no target, which is 0.5 % of the 1000" in finding.cause
