"""update-between-optimizers fires with the line of the update() that came too early, and what it does to gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import Model, line_of, watching


def told(scale: float, before: float) -> Stream:
    data = {"optimizer": "AdamW", "scale": scale, "scale_before": before, "first_step": 7}
    return warm(9).event("usage.update_between_optimizers", caller="loop/train.py:120", **data)


def test_it_opens_at_once_and_says_by_how_much_the_gradients_are_off() -> None:
    finding = findings(told(512.0, 1024.0))["update-between-optimizers"]
    assert ("ticket", 7, 8) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert (
        "scaler.update() at loop/train.py:120 was called after the step of one optimizer and before that of AdamW"
        in (finding.cause)
    )
    assert "multiplied by 1024 (2^10) and divided by 512 (2^9), so they count 2-fold" in finding.cause
    assert finding.fix.startswith("Remove scaler.update() at loop/train.py:120: call scaler.step() for every optimizer")


def test_a_scale_that_stayed_is_said_to_have_done_no_harm_yet() -> None:
    finding = findings(told(1024.0, 1024.0))["update-between-optimizers"]
    assert "in every step in which this update() changes the scale, they have the wrong size" in finding.cause


def test_gradients_that_were_unscaled_before_are_said_to_be_divided_twice() -> None:
    data = {"optimizer": "AdamW", "scale": 512.0, "scale_before": 1024.0, "first_step": 7, "unscaled": True}
    stream = warm(9).event("usage.update_between_optimizers", caller="loop/train.py:120", **data)
    cause = findings(stream)["update-between-optimizers"].cause
    assert "had already divided these gradients by 1024 (2^10)" in cause
    assert "divides them again, by 512 (2^9), so they count 1 part in 512" in cause
    assert "2-fold" not in cause


def test_it_is_told_once() -> None:
    stream = told(512.0, 1024.0).event("usage.update_between_optimizers", caller="b.py:1", optimizer="SGD")
    finding = findings(stream)["update-between-optimizers"]
    assert (1, "loop/train.py:120") == (finding.times, finding.caller)


def train(models: Any, optimizers: Any, scaler: Any, between: bool) -> None:
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = [model(torch.randn(8, 12)).float() for model in models]
        scaler.scale(sum(output.square().mean() for output in outputs)).backward()
        scaler.step(optimizers[0])
        if between:
            scaler.update()  # between
        scaler.step(optimizers[1])
        scaler.update()


def test_a_program_that_updates_between_its_optimizers_is_found_by_its_line(tmp_path: Path) -> None:
    for between in (False, True):
        models, scaler = [Model(), Model()], torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=1e-4) for model in models]
        with watching(tmp_path, models, optimizers, scaler) as seen:
            train(models, optimizers, scaler, between)
        findings = seen.findings()
        assert ({"update-between-optimizers"} if between else set()) == set(findings)
    assert (findings["update-between-optimizers"].caller or "").endswith(line_of(train, "# between"))
    assert "so they count 0.5-fold" in findings["update-between-optimizers"].cause
