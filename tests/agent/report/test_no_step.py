"""A run in which no step was heard is told why, whatever kept it from it. The programs are real."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.__main__ import main
from tests.agent import programs

LATE = "watch() came after the training: call it before the loop"
OTHER = "an optimizer steps, but not one that watch() was given: call it when all are made, with all that step"
NEVER = "optimizer.step() is never called in the process that called watch()"
UNSCALED = "scaler.step() came before any scaler.scale(), and raised: call scaler.scale(loss).backward()"
CAUGHT = "scaler.step() came without scaler.scale(), raised, and the program caught that"


def loss(model: torch.nn.Module) -> Any:
    return model(torch.ones(3, 4)).square().mean()


def made(kind: type = torch.optim.SGD) -> tuple[torch.nn.Module, Any, torch.amp.GradScaler]:
    model = torch.nn.Linear(4, 2)
    return model, kind(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)


def no_step_is_called(folder: Path) -> None:
    model, optimizer, _ = made()
    run = ammeter.watch(model, optimizer, dir=folder)
    for _ in range(4):
        loss(model).backward()
        model.zero_grad()
    run.close()


def nothing_is_scaled(folder: Path) -> None:
    model, optimizer, scaler = made()
    run = ammeter.watch(model, optimizer, scaler, dir=folder)
    for _ in range(4):
        loss(model).backward()
        with suppress(AssertionError):
            scaler.step(optimizer)
            scaler.update()
    run.close()


def nothing_is_scaled_by_an_unknown_scaler(folder: Path) -> None:
    model, optimizer, scaler = made()
    run = ammeter.watch(model, optimizer, dir=folder)
    for _ in range(4):
        loss(model).backward()
        with suppress(AssertionError):
            scaler.step(optimizer)
    run.close()


def another_optimizer_steps(folder: Path) -> None:
    model, optimizer, _ = made()
    other = torch.optim.AdamW(model.parameters())
    run = ammeter.watch(model, optimizer, dir=folder)
    for _ in range(4):
        other.zero_grad()
        loss(model).backward()
        other.step()
    run.close()


def another_optimizer_steps_by_the_scaler(folder: Path) -> None:
    model, optimizer, scaler = made()
    other = torch.optim.AdamW(model.parameters())
    run = ammeter.watch(model, optimizer, scaler, dir=folder)
    for _ in range(4):
        other.zero_grad()
        scaler.scale(loss(model)).backward()
        scaler.step(other)
        scaler.update()
    run.close()


def the_training_is_over(folder: Path, kind: type = torch.optim.SGD) -> None:
    model, optimizer, _ = made(kind)
    for _ in range(4):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    ammeter.watch(model, optimizer, dir=folder).close()


def the_training_with_adam_is_over(folder: Path) -> None:
    the_training_is_over(folder, torch.optim.AdamW)


Program = Callable[[Path], None]

MAY_BE: list[tuple[Program, str]] = [
    (no_step_is_called, NEVER),
    (nothing_is_scaled_by_an_unknown_scaler, CAUGHT),
    (another_optimizer_steps, OTHER),
    (another_optimizer_steps_by_the_scaler, OTHER),
    (the_training_is_over, LATE),
]


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """The causes in JSON, and the text."""
    main(["report", str(folder), "--json"])
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert 0 == summary["steps"]
    main(["report", str(folder)])
    return summary["no_step"], " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("program", "cause"), MAY_BE, ids=[program.__name__ for program, _ in MAY_BE])
def test_what_the_journal_cannot_tell_apart_is_told_as_what_it_may_be(
    program: Program, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path)
    reasons, text = told(tmp_path, capsys)
    assert 1 == sum(cause in reason for reason in reasons)
    assert "No step was recorded. Possible reasons:" in text
    assert f"- {cause}" in text


def test_what_the_journal_tells_is_told_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing_is_scaled(tmp_path)
    reasons, text = told(tmp_path, capsys)
    assert [UNSCALED] == reasons
    assert f"No step was recorded: {UNSCALED}." in text


def test_a_step_without_a_scale_is_told_once_with_its_line_and_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_is_scaled(tmp_path)
    _, text = told(tmp_path, capsys)
    assert "test_no_step.py:" in text
    assert "scaler.step() of SGD was called before any scaler.scale()" in text
    assert "also seen" not in text


def test_a_state_that_was_there_before_says_that_training_may_have_been_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    the_training_with_adam_is_over(tmp_path)
    (first, *_), _ = told(tmp_path, capsys)
    assert first.startswith("the optimizer had a state already when watch() was called")
    assert first.endswith(LATE)


def test_a_program_that_raised_is_told_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = programs.start("raise KeyError('batch')", tmp_path).end()
    assert 1 == ended.code
    (first, *_), text = told(ended.folder, capsys)
    assert "the program raised before its first step: KeyError: 'batch'" == first
    assert NEVER in text


def test_what_torch_says_without_a_scale_names_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
        scaler = torch.amp.GradScaler("cpu")
        model(torch.ones(3, 4)).sum().backward()
        scaler.step(optimizer)
    """
    ended = programs.start(body, tmp_path).end()
    assert 1 == ended.code
    reasons, _ = told(ended.folder, capsys)
    assert [UNSCALED] == reasons


def test_a_run_that_lives_may_be_in_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, _ = made()
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    _, text = told(tmp_path, capsys)
    run.close()
    assert "No step was recorded yet. If the first step is not in progress, possible reasons:" in text


def test_a_run_with_a_step_is_told_none_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, _ = made()
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    loss(model).backward()
    optimizer.step()
    run.close()
    main(["report", str(tmp_path), "--json"])
    assert [] == json.loads(capsys.readouterr().out)["summary"]["no_step"]
    main(["report", str(tmp_path)])
    assert "No step was recorded" not in capsys.readouterr().out
