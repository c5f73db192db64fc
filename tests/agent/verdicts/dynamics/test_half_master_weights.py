"""half-master-weights fires after the first step on weights in half precision that nobody keeps in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import line_of, watching

NAMES = ["embed.weight", "blocks.0.fc.weight"]


def halved(**more: Any) -> Stream:
    data: dict[str, Any] = {"caller": "loop.py:9", "optimizer": "AdamW", "dtypes": ["bfloat16"], "count": 6, "of": 6}
    data |= {"tensors": NAMES, "state": ["bfloat16"], "held": 0.1, "refused": False}
    return Stream().autocast("bfloat16").good().event("usage.half_weights", **(data | more))


def found(stream: Stream) -> Finding:
    return findings(stream)["half-master-weights"]


def test_it_opens_at_once_and_names_the_weights_and_what_is_lost() -> None:
    finding = found(halved())
    assert ("ticket", 0, 0) == (finding.severity, finding.first_step, finding.opened_step)
    assert ("embed.weight", "embed", "loop.py:9") == (finding.tensor, finding.module, finding.caller)
    assert "AdamW at loop.py:9 updates 6 of its 6 tensors in bfloat16, and no float32 master weights" in finding.cause
    assert "The tensors are embed.weight, blocks.0.fc.weight and 4 others." in finding.cause
    assert "In bfloat16 neighbouring numbers near 1 differ by 0.008 (2^-7)" in finding.cause
    assert "torch.autocast(device, dtype=torch.bfloat16)" in finding.fix


def test_float16_weights_that_the_scaler_refuses_are_said_to_end_the_run() -> None:
    finding = found(halved(dtypes=["float16"], refused=True, count=2, scale=65536.0))
    assert "GradScaler rejects their gradients at loop.py:9" in finding.cause
    assert 'with "Attempting to unscale FP16 gradients", which ends the run unless' in finding.cause
    assert "The tensors are embed.weight and blocks.0.fc.weight." in finding.cause


def test_float16_is_finer_than_bfloat16() -> None:
    assert "In float16 neighbouring numbers near 1 differ by 0.001 (2^-10)" in found(halved(dtypes=["float16"])).cause


def test_a_census_of_half_weights_with_masters_is_fine() -> None:
    stream = warm(20, scale=None)
    stream.event("weights.census", parameters={"bfloat16": 9}, trainable={"bfloat16": 9}, state={}, masters=True)
    assert {} == findings(stream.good())


def test_it_is_told_once() -> None:
    finding = found(halved().good().event("usage.half_weights", dtypes=["float16"], count=1, of=1, tensors=["a"]))
    assert (1, 6) == (finding.times, finding.evidence["count"])


def train(model: Any, optimizer: Any) -> None:
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 6)).square().mean()
        loss.float().backward()
        optimizer.step()


@pytest.mark.parametrize("frozen", [False, True])
def test_real_half_weights_are_found_when_they_are_trained(frozen: bool, tmp_path: Path) -> None:
    base, head = torch.nn.Linear(6, 6).bfloat16(), torch.nn.Linear(6, 2)
    base.requires_grad_(not frozen)
    model = torch.nn.Sequential(base, torch.nn.Tanh(), head)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer)
    findings = seen.findings()
    assert (not frozen) == ("half-master-weights" in findings)
    if not frozen:
        finding = findings["half-master-weights"]
        assert "updates 2 of its 4 tensors in bfloat16" in finding.cause
        assert "The tensors are 0.weight and 0.bias." in finding.cause
        assert (finding.caller or "").endswith(line_of(train, "optimizer.step"))
