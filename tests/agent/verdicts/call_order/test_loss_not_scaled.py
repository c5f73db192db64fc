"""loss-not-scaled fires with the line of the backward() that was called on the wrong thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import Model, line_of, watching


def told(scale: float | None = 65536.0, scaled_too: bool = False) -> Stream:
    data = {"optimizer": "SGD", "scale": scale, "scaled_too": scaled_too}
    return warm(7).event("usage.loss_not_scaled", caller="loop/train.py:120", **data)


def test_it_opens_at_once_and_names_the_line() -> None:
    finding = findings(told())["loss-not-scaled"]
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert "backward() at loop/train.py:120 was called on a loss that did not come from scaler.scale()" in finding.cause
    assert "SGD goes through the scaler, which divides the gradients by the loss scale of 65536 (2^16)" in finding.cause
    assert finding.fix.startswith("Call scaler.scale(loss).backward() at loop/train.py:120 instead of loss.backward().")


def test_a_part_that_is_not_scaled_is_told_apart_from_the_whole() -> None:
    finding = findings(told(scaled_too=True))["loss-not-scaled"]
    assert "A part of the loss is not scaled: its gradients end up 65536 times too small" == finding.title
    assert "a loss of which a part did not come from scaler.scale()" in finding.cause
    assert "divides the gradients of that part by the loss scale of 65536 (2^16)" in finding.cause
    assert "Add up all parts of the loss and call" in finding.fix


def test_a_scaler_that_refuses_is_said_to_end_the_run() -> None:
    finding = findings(told(scale=None))["loss-not-scaled"]
    assert "before any scaler.scale()" in finding.cause
    assert "raises an AssertionError, which ends the run unless the program catches it" in finding.cause


def test_another_mistake_is_none_of_its_business() -> None:
    stream = warm(7).event("usage.step_not_updated", caller="a.py:1", optimizer="SGD", scale=1024.0)
    assert "loss-not-scaled" not in findings(stream)


def test_it_is_told_once() -> None:
    finding = findings(told().event("usage.loss_not_scaled", caller="b.py:1", optimizer="Adam", scale=2.0))
    assert (1, "loop/train.py:120") == (finding["loss-not-scaled"].times, finding["loss-not-scaled"].caller)


def train(model: Any, optimizer: Any, scaler: Any, scaled: bool) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(8, 12))
        loss = output.float().square().mean()
        scaled_loss = scaler.scale(loss)
        (scaled_loss if scaled else loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_a_program_that_throws_away_what_scale_returns_is_found_by_its_line(tmp_path: Path) -> None:
    for scaled in (True, False):
        model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with watching(tmp_path, model, optimizer, scaler) as seen:
            train(model, optimizer, scaler, scaled)
        findings_of = seen.findings()
        assert (set() if scaled else {"loss-not-scaled"}) == set(findings_of)
    assert (findings_of["loss-not-scaled"].caller or "").endswith(line_of(train, ".backward()"))
    assert "by the loss scale of 1024 (2^10)" in findings_of["loss-not-scaled"].cause
