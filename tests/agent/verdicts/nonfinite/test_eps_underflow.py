"""eps-underflow fires once, with the optimizer or norm whose eps adds nothing, and an eps that would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import findings
from tests.agent.training import Seen, watching


def told(**data: Any) -> Finding:
    stream = warm(5, scale=None).event("usage.eps_below_dtype", **data)
    return findings(stream)["eps-underflow"]


def test_an_optimizer_is_named_with_its_line_and_what_to_set() -> None:
    finding = told(where="AdamW", eps=1e-8, dtype="float16", caller="loop/train.py:88")
    assert ("ticket", 4, "loop/train.py:88") == (finding.severity, finding.first_step, finding.caller)
    assert "AdamW divides by zero: its eps of 1e-08 is zero in float16" == finding.title
    assert (
        "The eps of AdamW (loop/train.py:88), 1e-08, is zero in float16, whose smallest number is 6e-08"
        in finding.cause
    )
    assert "is 0/0, which makes the weight NaN. A loss scaler does not skip that step" in finding.cause
    assert "set eps=0.0001 in AdamW" in finding.fix
    assert finding.module is None


def test_an_eps_of_zero_needs_no_dtype_to_vanish_in() -> None:
    finding = told(where="AdamW", eps=0.0, dtype="float32")
    assert "The eps of AdamW is 0, so it does not prevent a division by zero." in finding.cause
    assert finding.fix.startswith("Set the eps of AdamW to torch's default.")


def test_a_norm_is_named_by_its_path() -> None:
    finding = told(where="blocks.1.norm", eps=1e-12, dtype="float16", bad=0.75)
    assert "An input without variance becomes NaN: in a test, 75 % of the outputs were NaN." in finding.cause
    assert "Keep blocks.1.norm in float32" in finding.fix
    assert "blocks.1.norm" == finding.module


def test_it_is_told_once() -> None:
    stream = warm(5, scale=None)
    for where in ("Adam", "AdamW"):
        stream.event("usage.eps_below_dtype", where=where, eps=1e-8, dtype="float16")
    assert "Adam divides by zero: its eps of 1e-08 is zero in float16" == findings(stream)["eps-underflow"].title


def train(folder: Path, eps: float, dtype: torch.dtype) -> Seen:
    """An input that is always zero leaves a column of the first weight without a gradient."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), eps=eps)
    with watching(folder, model, optimizer) as seen:
        for _ in range(6):
            x = torch.randn(5, 4, dtype=dtype)
            x[:, 0] = 0
            model(x).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return seen


def test_a_real_run_in_float16_has_one_cause_although_everything_is_nan(tmp_path: Path) -> None:
    findings = train(tmp_path, 1e-8, torch.float16).findings()
    causes = explain([("stream", finding) for finding in findings.values()])
    assert "eps-underflow" == causes[0].finding.verdict
    assert 0 == causes[0].finding.first_step
    assert {"nonfinite-loss", "nonfinite-weights"} <= {consequence.verdict for consequence in causes[0].consequences}


def test_an_eps_that_the_dtype_holds_keeps_it_silent(tmp_path: Path) -> None:
    for name, eps, dtype in (("raised", 1e-4, torch.float16), ("bf16", 1e-8, torch.bfloat16), ("32", 1e-8, None)):
        findings = train(tmp_path / name, eps, dtype or torch.float32).findings()
        assert "eps-underflow" not in findings
