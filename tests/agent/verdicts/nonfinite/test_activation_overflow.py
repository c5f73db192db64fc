"""activation-overflow fires for an Inf that float16 makes of finite numbers, and for a peak at half of its range."""

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

LINEAR = {"module": "blocks.1.fc", "class": "Linear", "op": "AddmmBackward0", "absmax": 812.0, "infs": 4}


def told(**data: Any) -> dict[str, Finding]:
    stream = warm(40).bad(65536, last=5, loss=float("nan")).bad(32768, last=5, loss=float("nan"))
    return findings(born(stream, **data))


def peak(share: float) -> dict[str, Finding]:
    modules = [
        {"module": "blocks.0.fc", "absmax": 9.0, "share": 9 / 65504},
        {"module": "head", "absmax": share * 65504, "share": share},
    ]
    return findings(warm(40).event("activation.peaks", modules=modules))


def test_the_module_is_named_with_what_went_in() -> None:
    finding = told(**LINEAR)["activation-overflow"]
    assert ("ticket", 40, 41, "blocks.1.fc") == (
        finding.severity,
        finding.first_step,
        finding.opened_step,
        finding.module,
    )
    assert "The output of blocks.1.fc exceeds the largest float16" == finding.title
    assert "4 of its values are Inf although its inputs are finite, at most 812." in finding.cause
    assert "make the inputs of blocks.1.fc smaller, with a norm or a clamp" in finding.fix
    assert "dtype=torch.bfloat16" in finding.fix


def test_a_product_of_small_inputs_needs_a_factor_that_float16_does_not_have() -> None:
    finding = told(**LINEAR | {"op": "MulBackward0", "absmax": 0.5})["activation-overflow"]
    assert "To overflow, they must be multiplied by more than 131000." in finding.cause
    assert finding.fix.startswith(
        "Remove the large factor in blocks.1.fc: look for what multiplies by it since step 40."
    )


@pytest.mark.parametrize(
    "data",
    [
        {"dtype": "bfloat16"},
        {"dtype": "float32"},
        {"infs": 0, "nans": 3},
        {"op": "LogBackward0"},
        {"op": "DivBackward0"},
        {"op": "RsqrtBackward0"},
        {"op": "loss"},
        {"kind": "backward"},
        {"kind": "weights"},
        {"kind": "input"},
        {"reason": "constant", "confidence": "graph"},
    ],
)
def test_what_is_no_overflow_keeps_it_silent(data: dict[str, Any]) -> None:
    assert "activation-overflow" not in told(**{**LINEAR, **data})


@pytest.mark.parametrize("op", ["PowBackward0", "DivBackward0"])
def test_a_power_that_float64_holds_is_an_overflow(op: str) -> None:
    finding = told(**{**LINEAR, "op": op, "reason": "range", "confidence": "graph"})["activation-overflow"]
    assert f"The output of blocks.1.fc ({op}) overflowed float16" in finding.cause


def test_a_peak_at_half_of_the_range_is_told_before_it_happens() -> None:
    assert {} == peak(0.49)
    finding = peak(0.5)["activation-overflow"]
    assert "The output of head comes close to the largest float16" == finding.title
    assert "The output of head reaches 32752 in float16, 50 % of the largest value, 65504." in finding.cause
    assert finding.evidence["infs"] is None


def test_an_overflow_after_the_warning_takes_its_place() -> None:
    stream = warm(40).event("activation.peaks", modules=[{"module": "head", "absmax": 4e4, "share": 0.61}])
    stream.good(65536).bad(65536, last=5, loss=float("nan"))
    finding = findings(born(stream, **LINEAR, since=0))["activation-overflow"]
    assert ("blocks.1.fc", 39, 1) == (finding.module, finding.first_step, finding.times)


class Growing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 2)
        self.gain = torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.gain(self.first(x)))
        return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_real_activation_that_passes_float16_is_named(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Growing()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-12), torch.amp.GradScaler("cpu")
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for step in range(8):
            if step == 4:
                model.gain.register_forward_hook(lambda module, args, output: output * 1e6)
            with torch.autocast("cpu", dtype):
                loss = (model(torch.randn(5, 6)).float() * 1e-6).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    causes = explain([("stream", finding) for finding in seen.findings().values()])
    if dtype is torch.float16:
        assert "activation-overflow" == causes[0].finding.verdict
        assert ("gain", 4) == (causes[0].finding.module, causes[0].finding.first_step)
    else:
        assert "activation-overflow" not in [cause.finding.verdict for cause in causes]
