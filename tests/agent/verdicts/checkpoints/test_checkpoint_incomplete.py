"""checkpoint-incomplete fires where nothing that is saved can be resumed from; exports beside a checkpoint are fine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import stream as journal_of
from tests.agent.training import watching

EXPORT = ["optimizer", "scaler"]


def saved(
    stream: Stream, missing: list[str], path: str = "out/run.pt", weights: str = "float32", **more: Any
) -> Stream:
    """A save, and the step after it."""
    contents = {"weights": {weights: 1280}, "optimizer": "optimizer" not in missing, "whole": True, **more}
    stream.event("checkpoint.saved", path=path, contents=contents, missing=missing, mode="0600", exposed=[])
    return stream


def went_on(stream: Stream, steps: int = 5) -> Stream:
    for _ in range(steps):
        stream.good(65536)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["checkpoint-incomplete"]


def test_one_without_the_scaler_is_told_as_soon_as_training_goes_on() -> None:
    stream = saved(warm(30), ["scaler"])
    assert {} == findings(stream)
    finding = found(went_on(stream))
    assert ("ticket", 29, 29) == (finding.severity, finding.first_step, finding.opened_step)
    assert "The checkpoints lack scaler" == finding.title
    assert "No complete checkpoint of this run was seen: 1 checkpoint since step 29 lacks a part" in finding.cause
    assert "no GradScaler state, so a resumed run skips steps" in finding.cause
    assert '"scaler": scaler.state_dict()' in finding.fix
    assert "optimizer.state_dict()" not in finding.fix


def test_weights_alone_are_told_at_the_third_that_training_went_on_from() -> None:
    stream = warm(30)
    for times in range(3):
        assert {} == findings(stream)
        went_on(saved(stream, EXPORT, path=f"out/{times}.pt"))
    finding = found(stream)
    assert (29, 39) == (finding.first_step, finding.opened_step)
    assert "The checkpoints lack optimizer and scaler" == finding.title
    assert "3 checkpoints since step 29" in finding.cause
    assert "The last one, out/2.pt," in finding.cause
    assert '"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()' in finding.fix


def test_half_weights_with_all_else_are_told_with_their_dtype() -> None:
    finding = found(went_on(saved(warm(30), ["float32 weights"], weights="bfloat16")))
    assert "weights in half precision only" in finding.cause
    assert "saved before any .half()" in finding.fix
    assert "bfloat16" == finding.evidence["weights"]


def test_exports_beside_a_complete_checkpoint_are_no_fault() -> None:
    stream = went_on(saved(warm(30), []))
    for _ in range(20):
        went_on(saved(stream, [*EXPORT, "float32 weights"], path="out/export.pt", weights="float16"))
    assert {} == findings(stream)


def test_files_of_one_step_are_one_checkpoint() -> None:
    stream = warm(30)
    for _ in range(4):
        for missing in (["optimizer", "scaler"], ["weights", "scaler"], ["weights", "optimizer"]):
            saved(stream, missing)
        went_on(stream)
    assert {} == findings(stream)


def test_a_part_of_another_ranks_checkpoint_is_not_judged() -> None:
    stream = warm(30)
    for _ in range(6):
        went_on(saved(stream, ["weights", "scaler"]))
    assert {} == findings(stream)


def test_one_that_is_saved_at_the_end_is_an_export() -> None:
    stream = saved(warm(30), EXPORT)
    assert {} == findings(saved(went_on(stream), EXPORT, path="out/final.pt").bye())


def test_what_was_too_large_to_be_looked_through_is_not_judged() -> None:
    stream = warm(30)
    for _ in range(6):
        went_on(saved(stream, EXPORT, whole=False))
    assert {} == findings(stream)


def test_a_complete_one_ends_it_and_exports_stay_silent() -> None:
    stream = went_on(saved(warm(30), ["scaler"]))
    assert found(stream).active
    saved(stream, [])
    for _ in range(5):
        went_on(saved(stream, EXPORT))
    assert (False, 1) == (found(stream).active, found(stream).times)


@pytest.mark.parametrize("parts", [("model",), ("model", "optimizer")])
def test_a_program_that_saves_its_weights_only_is_told(parts: tuple[str, ...], tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    optimizer = torch.optim.RMSprop(model.parameters())
    have: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with watching(tmp_path / "runs", model, optimizer) as seen:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randint(9, (6, 3))).square().mean().backward()
            optimizer.step()
            torch.save({name: have[name].state_dict() for name in parts}, tmp_path / "last.pt")
    stream = Stream()
    stream.frames = journal_of(seen.run, tmp_path / "runs")[1]
    if "optimizer" in parts:
        assert {} == findings(stream)
    else:
        assert ["optimizer"] == found(stream).evidence["missing"]
