"""masked-row-nan fires where NaN without Inf is born in a softmax or an attention, and not for an overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_values import born
from tests.agent.training import watching

SOFTMAX = {"module": "layer.softmax", "class": "Softmax", "op": "SoftmaxBackward0", "absmax": 3.1, "nans": 64}


def told(**data: Any) -> dict[str, Finding]:
    stream = warm(40).bad(65536, last=5, loss=float("nan")).bad(32768, last=5, loss=float("nan"))
    return findings(born(stream, **data))


def test_a_softmax_that_makes_nan_is_named_with_the_sample() -> None:
    finding = told(**SOFTMAX, sample=2)["masked-row-nan"]
    assert ("ticket", 40, 41, "layer.softmax") == (
        finding.severity,
        finding.first_step,
        finding.opened_step,
        finding.module,
    )
    assert "A fully masked row makes layer.softmax return NaN" == finding.title
    assert "layer.softmax (Softmax) returned 64 NaN and no Inf from inputs without NaN or +Inf" in finding.cause
    assert "it divides 0 by 0. Sample 2, counted from 0, is the first with NaN." in finding.cause
    assert "masked = masked & ~masked.all(-1, keepdim=True)" in finding.fix


def test_a_part_of_the_module_that_is_found_later_is_named_instead() -> None:
    stream = warm(40).bad(65536, last=5, loss=float("nan"))
    stream = born(stream, **{**SOFTMAX, "module": "layer", "class": "", "confidence": "graph", "since": 0})
    stream = born(stream.bad(32768, last=5, loss=float("nan")), **SOFTMAX, since=1)
    finding = findings(stream)["masked-row-nan"]
    assert ("layer.softmax", 40) == (finding.module, finding.first_step)


@pytest.mark.parametrize(
    ("data", "fires"),
    [
        ({"class": "SelfAttention", "op": "ViewBackward0", "absmax": 4.0}, True),
        ({"class": "SelfAttention", "op": "ViewBackward0", "absmax": 400.0}, False),
        ({"class": "SelfAttention", "op": "ViewBackward0", "absmax": 400.0, "dtype": "bfloat16"}, True),
        ({"class": "Block", "op": "ScaledDotProductFlashAttentionForCpuBackward0", "absmax": 4.0}, True),
        ({"class": "SelfAttention", "op": "ViewBackward0", "absmax": 4.0, "infs": 3}, False),
        ({"class": "SelfAttention", "op": "FlashAttentionBackward", "absmax": 4.0}, False),
        ({"class": "LogSoftmax", "op": "LogSoftmaxBackward0", "absmax": 4.0}, True),
        ({"class": "Linear", "op": "AddmmBackward0", "absmax": 4.0}, False),
        ({"class": "Softmax", "op": "SoftmaxBackward0", "absmax": 4.0, "kind": "weights"}, False),
        ({"class": "Softmax", "op": "SoftmaxBackward0", "absmax": 4.0, "kind": "backward"}, False),
        ({"class": "Softmax", "op": "SoftmaxBackward0", "absmax": 4.0, "nans": 0}, False),
    ],
)
def test_what_counts_as_one(data: dict[str, Any], fires: bool) -> None:
    assert fires == ("masked-row-nan" in told(**{"module": "layer", "nans": 8, **data}))


def test_it_is_told_once_and_is_the_cause_of_the_loss() -> None:
    stream = warm(40).bad(65536, last=5, loss=float("nan")).bad(32768, last=5, loss=float("nan"))
    born(born(stream, **SOFTMAX), **{**SOFTMAX, "module": "other"})
    causes = explain([("stream", finding) for finding in findings(stream).values()])
    assert ["masked-row-nan"] == [cause.finding.verdict for cause in causes]
    assert "layer.softmax" == causes[0].finding.module
    assert "nonfinite-loss" in [consequence.verdict for consequence in causes[0].consequences]


class Attending(torch.nn.Module):
    """Attention written out, over positions that may be padding."""

    def __init__(self) -> None:
        super().__init__()
        self.key = torch.nn.Linear(4, 4)
        self.softmax = torch.nn.Softmax(-1)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        scores = self.key(x) @ x.transpose(-2, -1).to(torch.float16)
        weights: torch.Tensor = self.softmax(scores.masked_fill(padding[:, None, :], float("-inf")))
        return weights @ x.to(weights.dtype)


def test_a_row_of_zeros_needs_no_mask() -> None:
    data = {"module": "layer", "op": "DivBackward0", "absmax": 3.0, "nans": 6, "reason": "row"}
    finding = told(**data)["masked-row-nan"]
    assert "A row whose sum is 0 makes layer return NaN" == finding.title
    assert finding.fix.startswith("In layer, add an eps to the sum")


@pytest.mark.parametrize("empty", [True, False])
def test_a_real_sequence_that_is_all_padding_is_named(empty: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Attending()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for step in range(8):
            padding = torch.zeros(3, 5, dtype=torch.bool)
            padding[2, 0 if empty and step >= 4 else 3 :] = True
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(3, 5, 4), padding).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    causes = explain([("stream", finding) for finding in seen.findings().values()])
    assert (["masked-row-nan"] if empty else []) == [cause.finding.verdict for cause in causes]
    if empty:
        assert ("softmax", 4, 2) == (
            causes[0].finding.module,
            causes[0].finding.first_step,
            causes[0].finding.evidence["sample"],
        )
