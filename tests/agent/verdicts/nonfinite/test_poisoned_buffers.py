"""poisoned-buffers fires when training goes on while a buffer is not finite, and not while the loss is bad, too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.recording.schedule import budget as schedule
from ammeter.verdicts.causality import explain
from ammeter.verdicts.nonfinite.poisoned_buffers import FINITE_LOSSES
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken
from tests.agent.streams_values import saved
from tests.agent.training import watching

NAME = "poisoned-buffers"
BUFFER = "blocks.0.norm.running_mean"


def found_bad(stream: Stream, **data: Any) -> Stream:
    found = {"tensors": [BUFFER], "count": 1, "last_finite": 19, "statistics": True, **data}
    return stream.event("buffers.nonfinite", **found)


def trained(stream: Stream, steps: int = FINITE_LOSSES + 2) -> Stream:
    for _ in range(steps):
        stream.good(65536)
    return stream


@broken
def poisoned_buffers() -> Stream:
    """A batch with Inf makes one loss NaN, which the scaler skips; the running averages keep it."""
    stream = saved(warm(30), "/runs/7/step30.pt").good(65536)
    return trained(found_bad(stream.bad(65536, last=5, loss=math.nan)))


def test_ten_finite_losses_after_the_reading_open_it_and_the_loss_is_its_consequence() -> None:
    (cause,) = explain([("stream", finding) for finding in findings(poisoned_buffers()).values()])
    finding = cause.finding
    assert (NAME, "ticket", 31, 31 + FINITE_LOSSES) == (
        finding.verdict,
        finding.severity,
        finding.first_step,
        finding.opened_step,
    )
    assert "nonfinite-loss" in [consequence.verdict for consequence in cause.consequences]
    assert (BUFFER, "blocks.0.norm") == (finding.tensor, finding.module)
    assert "at step 19 they were finite. The loss of step 31 was not finite." in finding.cause
    assert "or load the averages from /runs/7/step30.pt, saved at step 29" in finding.fix


def test_too_few_finite_losses_leave_it_closed() -> None:
    assert NAME not in findings(trained(found_bad(warm(30)), FINITE_LOSSES - 1))


def test_a_loss_that_stays_bad_is_the_one_finding() -> None:
    stream = found_bad(warm(30).bad(65536, last=5, loss=math.nan))
    for _ in range(30):
        stream.bad(65536, last=5, loss=math.nan)
    assert NAME not in findings(stream)


def test_weights_that_are_not_finite_keep_it_closed() -> None:
    stream = found_bad(warm(30, scale=None))
    for _ in range(30):
        stream.good(weights_nonfinite=1)
    assert NAME not in findings(stream)


def test_a_finite_reading_closes_it() -> None:
    stream = trained(found_bad(warm(30)))
    assert findings(stream)[NAME].active
    assert not findings(stream.event("buffers.finite").good(65536))[NAME].active


def test_a_checkpoint_since_is_named_and_one_that_is_overwritten_is_no_place_to_return_to() -> None:
    stream = saved(found_bad(saved(warm(30), "/runs/last.pt").good(65536)).good(65536), "/runs/last.pt")
    finding = findings(trained(stream))[NAME]
    assert "/runs/last.pt was saved with it." in finding.cause
    assert "load" not in finding.fix


def test_another_buffer_counts_only_if_a_loss_was_bad_when_it_changed() -> None:
    mask = {"tensors": ["mask"], "statistics": False}
    assert NAME not in findings(trained(found_bad(warm(30), **mask)))
    assert NAME not in findings(trained(found_bad(warm(30), **mask).bad(65536, last=5, loss=math.nan), 30))
    finding = findings(trained(found_bad(warm(30).bad(65536, last=5, loss=math.nan), **mask)))[NAME]
    assert ("mask", 30) == (finding.tensor, finding.first_step)


def test_a_running_average_is_found_beside_a_mask() -> None:
    stream = trained(found_bad(warm(30), tensors=["mask"], statistics=False))
    finding = findings(trained(found_bad(stream, tensors=[BUFFER, "mask"], count=2)))[NAME]
    assert (BUFFER, 41) == (finding.tensor, finding.first_step)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
        self.register_buffer("mask", torch.full((8,), -torch.inf))
        self.register_buffer("late", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.norm(self.first(x)).relu())
        return y


@pytest.mark.parametrize("value", [None, 1e25, math.inf])
def test_a_real_run_names_the_layer_whose_statistics_one_batch_has_broken(
    value: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of 1e25 overflows in the variance only: no loss is bad. Two masks are -Inf by design."""
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path / "journal", model, optimizer, None) as seen:
        for step in range(60):
            x = torch.randn(16, 6)
            if step == 10:
                model.get_buffer("late").fill_(-torch.inf)
            if step == 25 and value is not None:
                with torch.no_grad():  # a forward pass that is thrown away, as of a batch that the program skips
                    model(x * value)
                continue
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    found = seen.findings()
    if value is None:
        assert NAME not in found
    else:
        assert "norm" == found[NAME].module
        assert {NAME} == set(found) - {"nonfinite-validation"}  # the pass itself, which poisoned-buffers explains
