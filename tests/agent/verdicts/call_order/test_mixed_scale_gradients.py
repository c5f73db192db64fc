"""mixed-scale-gradients fires where unscale_() or update() came in the middle of what one step uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import Model, line_of, watching


def told(after: str = "unscale_", **data: Any) -> Stream:
    data = {"optimizer": "SGD", "scale": 65536.0, "first_step": 6, **data}
    return warm(9).event("usage.mixed_scale", caller="loop/train.py:120", after=after, **data)


def test_what_is_added_after_unscaling_is_told_with_its_line_and_its_weight() -> None:
    finding = findings(told())["mixed-scale-gradients"]
    assert ("ticket", 6, 8) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert "backward() at loop/train.py:120 ran after scaler.unscale_() of SGD and added gradients" in finding.cause
    assert "multiplied by the loss scale of 65536 (2^16)" in finding.cause
    assert "so the gradients of this backward() are 65536 times too large in it." in finding.cause
    assert "once per step, after the backward() at loop/train.py:120; with accumulation" in finding.fix


def test_an_update_before_the_step_is_told_with_the_factor_it_makes() -> None:
    finding = findings(told("update", scale=8192.0, scale_before=1024.0))["mixed-scale-gradients"]
    assert "scaler.update() at loop/train.py:120 was called between a backward() and the step of SGD" in finding.cause
    assert "multiplied by 1024 (2^10) and are divided by 8192 (2^13), so they count 0.125-fold" in finding.cause
    assert "Move scaler.update() at loop/train.py:120 out of the accumulation" in finding.fix


def test_a_scale_that_has_not_changed_yet_is_said_to_do_no_harm_yet() -> None:
    finding = findings(told("update", scale_before=65536.0))["mixed-scale-gradients"]
    assert "So far nothing is wrong: the scale was 65536 (2^16) before and after it." in finding.cause


def test_a_second_unscale_is_told_as_a_missing_update() -> None:
    finding = findings(told("second unscale_"))["mixed-scale-gradients"]
    assert "scaler.unscale_() at loop/train.py:120 was called for SGD a second time" in finding.cause
    assert "Call scaler.update() once in every iteration" in finding.fix


def test_unscale_through_a_wrapper_is_told_as_a_second_division() -> None:
    finding = findings(told("unscale_ of a wrapper"))["mixed-scale-gradients"]
    assert "an object that wraps SGD, and scaler.step() at loop/train.py:120 with the optimizer itself" in finding.cause
    assert "a second time. They count 1 part in 65536 then." in finding.cause
    assert "Call scaler.unscale_() with the same object as scaler.step()" in finding.fix


def test_it_is_told_once() -> None:
    assert (
        1 == findings(told().event("usage.mixed_scale", caller="b.py:1", after="update"))["mixed-scale-gradients"].times
    )


def train(model: Any, optimizer: Any, scaler: Any, unscaled_behind: int) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        for batch in range(4):
            with torch.autocast("cpu", torch.float16):
                output = model(torch.randn(8, 12))
            scaler.scale(output.float().square().mean() / 4).backward()
            if batch == unscaled_behind:
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def test_a_program_that_unscales_in_the_middle_of_an_accumulation_is_found_by_its_line(tmp_path: Path) -> None:
    for behind in (3, 1):
        model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
        with watching(tmp_path, model, optimizer, scaler) as seen:
            train(model, optimizer, scaler, behind)
        findings = seen.findings()
        assert (set() if behind == 3 else {"mixed-scale-gradients"}) == set(findings)
    assert (findings["mixed-scale-gradients"].caller or "").endswith(line_of(train, ".backward()"))
    assert "1024 times too large" in findings["mixed-scale-gradients"].cause
