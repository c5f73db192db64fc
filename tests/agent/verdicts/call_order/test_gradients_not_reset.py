"""gradients-not-reset fires where something is left in the gradients; a NaN among it wakes a person."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import Model, watching


def told(after: str, left: float | str, scale: float | None) -> Stream:
    data = {"after": after, "left": left, "scale": scale}
    return warm(9).event("usage.gradients_not_reset", caller="loop/train.py:120", optimizer="SGD", **data)


@pytest.mark.parametrize("left", [math.inf, math.nan, "Infinity"])
def test_what_is_not_finite_and_left_wakes_a_person(left: float | str) -> None:
    finding = findings(told("skipped", left, 1024.0))["gradients-not-reset"]
    assert ("page", 8, 8) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert "After a step of SGD was skipped, its gradients with NaN or Inf were not reset" in finding.cause
    assert "they are used again at loop/train.py:120" in finding.cause
    assert finding.fix.startswith("Call optimizer.zero_grad() once in every iteration, unconditionally")
    assert finding.evidence["left"] in ("Infinity", "NaN")


def test_what_is_finite_and_left_can_wait_and_is_weighed() -> None:
    finding = findings(told("applied", 0.25, None))["gradients-not-reset"]
    assert "ticket" == finding.severity
    assert "Gradients were not reset after a step of SGD was applied" in finding.cause
    assert (
        "The largest remaining value that was read is 0.25. Each update repeats the remaining earlier" in finding.cause
    )
    finding = findings(told("applied", 0.25, 1024.0))["gradients-not-reset"]
    assert "1 part in 1024" in finding.cause
    assert "NaN or Inf that a skipped step leaves there will stay" in finding.cause


def test_zeros_that_are_left_are_a_reset() -> None:
    assert {} == findings(told("applied", 0.0, None))


def test_a_loss_that_was_not_finite_before_is_the_cause_and_one_that_came_after_the_consequence() -> None:
    stream = warm()
    for step in range(12):
        stream.bad(2.0 ** (16 - step), last=5, loss=math.nan)
        if step == 1:
            stream.event("usage.gradients_not_reset", caller="a.py:1", optimizer="SGD", after="skipped", left=math.inf)
    (only,) = explain([("a", finding) for finding in findings(stream).values()])
    assert "nonfinite-loss" == only.finding.verdict
    assert "gradients-not-reset" in [consequence.verdict for consequence in only.consequences]
    stream = told("applied", 0.25, None)
    for _ in range(3):
        stream.bad(last=5, loss=math.nan)
    (only,) = explain([("a", finding) for finding in findings(stream).values()])
    assert ("gradients-not-reset", "nonfinite-loss") == (only.finding.verdict, only.consequences[0].verdict)


def test_it_is_told_once() -> None:
    stream = told("applied", 0.25, None).event("usage.gradients_not_reset", caller="b.py:1", left=1.0, after="applied")
    finding = findings(stream)["gradients-not-reset"]
    assert (1, "loop/train.py:120") == (finding.times, finding.caller)


def train(model: Any, optimizer: Any, scaler: Any, reset: str) -> None:
    for step in range(12):
        before = scaler.get_scale()
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(8, 12))
        loss = output.float().square().mean() * (float("inf") if step == 4 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if reset == "always" or (reset == "if applied" and scaler.get_scale() >= before):
            optimizer.zero_grad()


@pytest.mark.parametrize(("reset", "severity"), [("always", None), ("if applied", "page"), ("never", "ticket")])
def test_a_program_is_found_by_what_it_leaves(reset: str, severity: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        train(model, optimizer, scaler, reset)
    finding = seen.findings().get("gradients-not-reset")
    assert severity == (finding.severity if finding else None)
    if finding:
        assert (1024.0 if reset == "never" else 512.0) == finding.evidence["scale"]
        assert ("applied" if reset == "never" else "skipped") == finding.evidence["after"]
