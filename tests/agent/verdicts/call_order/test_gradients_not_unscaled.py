"""gradients-not-unscaled fires with the line of the step() that went past the scaler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from tests.agent.recording.unobserved.test_same_rows import Direct
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import Model, line_of, watching


def told(scale: float | None = 65536.0) -> Stream:
    return warm(7).event("usage.gradients_not_unscaled", caller="loop/train.py:120", optimizer="SGD", scale=scale)


def test_it_opens_at_once_and_names_the_line() -> None:
    finding = findings(told())["gradients-not-unscaled"]
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert "SGD.step() at loop/train.py:120 was called directly instead of through scaler.step()" in finding.cause
    assert "still multiplied by the scale of 65536 (2^16)" in finding.cause
    assert finding.fix.startswith("Call scaler.step(optimizer) instead of SGD.step() at loop/train.py:120")
    assert "SGD takes steps that many times too large." in finding.cause
    assert "Adam" not in finding.cause


def test_an_optimizer_that_normalizes_gradients_hides_the_mistake() -> None:
    stream = warm(7).event("usage.gradients_not_unscaled", optimizer="AdamW of head.weight", scale=1024.0)
    finding = findings(stream)["gradients-not-unscaled"]
    assert "AdamW steps on scaled gradients" == finding.title
    assert "AdamW divides gradients by their usual size, which hides the mistake." in finding.cause
    assert "SGD" not in finding.cause


def test_a_scaler_that_is_not_watched_is_no_reason_to_be_silent() -> None:
    assert "still multiplied by the loss scale." in findings(told(scale=None))["gradients-not-unscaled"].cause


@pytest.mark.parametrize("again", ["applied", "skipped"])
def test_a_step_after_that_of_the_scaler_is_to_be_removed(again: str) -> None:
    stream = warm(7).event(
        "usage.gradients_not_unscaled", caller="loop/train.py:120", optimizer="SGD", scale=1024.0, again=again, left=0.5
    )
    finding = findings(stream)["gradients-not-unscaled"]
    assert "The optimizer steps again after the scaler" == finding.title
    assert "SGD.step() at loop/train.py:120 was called after scaler.step(optimizer)" in finding.cause
    assert (again == "skipped") == ("The scaler had just skipped this step." in finding.cause)
    assert "still multiplied" not in finding.cause
    assert finding.fix.startswith("Remove SGD.step() at loop/train.py:120")
    assert {"optimizer": "SGD", "scale": 1024.0, "again": again} == finding.evidence


def test_a_clip_on_the_same_gradients_is_its_consequence() -> None:
    stream = told().event("usage.clip_before_unscale", caller="loop/train.py:119", max_norm=1.0, scale=65536.0)
    (only,) = explain([("a", finding) for finding in findings(stream).values()])
    assert "gradients-not-unscaled" == only.finding.verdict
    assert ["clip-before-unscale"] == [consequence.verdict for consequence in only.consequences]


def test_it_is_told_once() -> None:
    stream = told().event("usage.gradients_not_unscaled", caller="b.py:1", optimizer="Adam", scale=2.0)
    finding = findings(stream)["gradients-not-unscaled"]
    assert (1, "loop/train.py:120") == (finding.times, finding.caller)


def train(model: Any, optimizer: Any, scaler: Any, how: str) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = model(torch.randn(8, 12))
        scaler.scale(output.float().square().mean()).backward()
        if how == "past":
            optimizer.step()  # past the scaler
            continue
        if how == "unscaled":
            scaler.unscale_(optimizer)
        (scaler.step(optimizer) if how == "by the scaler" else optimizer.step())
        scaler.update()


@pytest.mark.parametrize("how", ["by the scaler", "unscaled", "past"])
def test_a_program_that_steps_past_the_scaler_is_found_by_its_line(how: str, tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        train(model, optimizer, scaler, how)
    found = seen.findings()
    assert ({"gradients-not-unscaled"} if how == "past" else set()) == set(found)
    if how == "past":
        finding = found["gradients-not-unscaled"]
        assert (finding.caller or "").endswith(line_of(train, "# past the scaler"))
        assert "Adam.step()" in finding.cause
        assert "the scale of 1024 (2^10)" in finding.cause


def train_past(model: Any, optimizers: list[Any], scaler: Any) -> None:
    with torch.autocast("cpu", torch.float16):
        output = model(torch.randn(8, 12))
    scaler.scale(output.float().square().mean()).backward()
    torch._foreach_mul_([parameter.grad for parameter in model.parameters()], 0.5)
    for optimizer in optimizers:
        optimizer.step()  # past the scaler, on changed gradients
    scaler.update()


def test_an_error_of_update_shows_a_step_past_the_scaler_on_changed_gradients(tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    first, *others = model.parameters()
    optimizers = [torch.optim.SGD([first], lr=1e-6), torch.optim.Adam(others, lr=1e-6)]
    with pytest.raises(AssertionError, match="prior to update"), watching(tmp_path, model, optimizers, scaler) as seen:
        train_past(model, optimizers, scaler)
    (finding,) = seen.findings().values()
    assert "gradients-not-unscaled" == finding.verdict
    assert (finding.caller or "").endswith(line_of(train_past, "# past the scaler, on changed gradients"))
    assert "raised 'No inf checks were recorded prior to update.'" in finding.cause
    assert "multiplied by the scale of 1024 (2^10)" in finding.cause


def test_an_update_without_a_step_is_no_sign_of_missing_gradients(tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()
    with pytest.raises(AssertionError, match="prior to update"), watching(tmp_path, model, optimizer, scaler) as seen:
        scaler.update()
    assert {} == seen.findings()


@pytest.mark.parametrize("is_fused", [False, True])
def test_methods_of_the_scaler_that_were_bound_before_watch_are_no_steps_past_it(
    is_fused: bool, tmp_path: Path
) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_fused)
    scale, unscale, step, update = scaler.scale, scaler.unscale_, scaler.step, scaler.update
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(5):
            optimizer.zero_grad()
            scale(model(torch.randn(8, 12)).square().mean()).backward()
            if not is_fused:
                unscale(optimizer)
            step(optimizer)
            update()
    assert "gradients-not-unscaled" not in seen.findings()


@pytest.mark.parametrize("kind", [torch.optim.SGD, Direct])
def test_weights_that_the_program_updates_itself_with_unscaled_gradients_are_no_step_past_the_scaler(
    kind: Any, tmp_path: Path
) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = kind(model.parameters(), lr=0.1)
    with watching(tmp_path, model, optimizer, scaler, budget=1.0) as seen:
        for _ in range(12):
            model.zero_grad()
            scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.01 / scaler.get_scale())
    assert {} == seen.findings()


def test_a_step_that_only_the_state_of_the_optimizer_shows_is_described_without_a_call(tmp_path: Path) -> None:
    model, scaler = Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    with watching(tmp_path, model, optimizer, scaler, budget=1.0) as seen:
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 12)).square().mean()).backward()
            torch.optim.SGD.step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    cause = seen.findings()["gradients-not-unscaled"].cause
    assert cause.startswith("SGD has updated its weights and its state without scaler.step(), so the optimizer used")
    assert "SGD.step()" not in cause
