"""scaler-not-restored fires at the first step of a resumed run, and says where the scaler's state was left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import line_of, watching
from tests.agent.verdicts.scaling import small, train


def resumed(stream: Stream, steps: int = 400) -> Stream:
    data = {"caller": "loop/train.py:12", "optimizer": "AdamW", "optimizer_steps": steps, "scale": 65536.0}
    return stream.good(65536.0).event("usage.scaler_not_restored", **data)


def restored(stream: Stream, path: str = "run/last.pt", **contents: Any) -> Stream:
    known = {"weights": {}, "optimizer": True, "scaler": False, "scheduler": False, "rng": False, "whole": True}
    return stream.event("checkpoint.restored", path=path, seconds=0.1, contents={**known, **contents})


def found(stream: Stream) -> Finding:
    return findings(stream)["scaler-not-restored"]


def test_it_opens_at_once_with_the_line_the_steps_and_the_scale() -> None:
    finding = found(resumed(Stream().autocast()))
    assert ("ticket", 0, 0) == (finding.severity, finding.first_step, finding.opened_step)
    assert "resumed after 400 steps at loop/train.py:12, but its GradScaler starts with an initial scale of 65536" in (
        finding.cause
    )
    assert "no state was loaded into it" in finding.cause
    assert "scaler.load_state_dict(checkpoint['scaler'])" in finding.fix
    assert "Save 'scaler': scaler.state_dict()" in finding.fix


def test_an_optimizer_that_does_not_count_is_said_without_steps() -> None:
    assert "AdamW was resumed at" in found(resumed(Stream(), steps=1)).cause


def test_a_checkpoint_without_a_scaler_is_named() -> None:
    finding = found(resumed(restored(Stream().autocast())))
    assert "run/last.pt contains the optimizer's state and no scaler's" in finding.cause
    assert "Save 'scaler'" in finding.fix


def test_a_checkpoint_whose_scaler_was_left_in_it_is_named() -> None:
    finding = found(resumed(restored(restored(Stream(), "run/amp.pt", scaler=True, optimizer=False))))
    assert "the scaler's state in the checkpoint run/amp.pt was read from the file and not loaded" in finding.cause
    assert "Save" not in finding.fix
    assert "run/amp.pt" == finding.evidence["scaler_state_in"]


@pytest.mark.parametrize("scaler_in", ["", "run/last.pt", "run/amp.pt"])
def test_a_loss_scale_of_the_run_before_is_only_claimed_if_a_file_shows_it(scaler_in: str) -> None:
    stream = Stream().autocast()
    if scaler_in:
        restored(stream, scaler_in, scaler=scaler_in == "run/amp.pt")
    finding = found(resumed(stream))
    is_known = scaler_in == "run/amp.pt"
    assert "The optimizer was resumed, but its GradScaler starts anew" == finding.title
    assert is_known == (". Until the scaler finds the scale of this run again" in finding.cause)
    assert is_known != ("If that run had a scaler, then until the scaler finds" in finding.cause)
    assert is_known != ("If it had none, as in float32, no state is missing." in finding.cause)


def test_what_was_read_later_or_not_looked_through_says_nothing() -> None:
    stream = restored(Stream(), whole=False)
    assert "no state was loaded into it" in found(restored(resumed(stream), scaler=True)).cause


def test_a_resumed_run_whose_scaler_was_restored_is_fine() -> None:
    stream = restored(Stream().autocast(), scaler=True).event("scaler.restored", scale=1024.0)
    for _ in range(30):
        stream.good(1024.0)
    assert {} == findings(stream)
    assert {} == findings(restored(warm()))


def test_it_is_told_once_and_a_scaler_that_is_then_rebuilt_is_listed_inside() -> None:
    stream = resumed(resumed(Stream()), steps=7)
    stream.event("usage.scaler_rebuilt", caller="b.py:3", optimizer="AdamW", scale=65536.0, scale_before=512.0)
    assert 400 == found(stream).evidence["optimizer_steps"]
    (cause,) = explain([("stream", finding) for finding in findings(stream).values()])
    assert ("scaler-not-restored", ["scaler-rebuilt"]) == (
        cause.finding.verdict,
        [consequence.verdict for consequence in cause.consequences],
    )


def build(scale: float = 64.0) -> tuple[Any, Any, Any]:
    return *small(), torch.amp.GradScaler("cpu", init_scale=scale)


@pytest.mark.parametrize("kept", ["kept", "not kept", "loaded"])
def test_a_real_resume_is_found_with_what_its_checkpoint_holds(kept: str, tmp_path: Path) -> None:
    model, optimizer, scaler = build()
    train(model, optimizer, scaler)
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(parts | ({} if kept == "not kept" else {"scaler": scaler.state_dict()}), tmp_path / "last.pt")
    model, optimizer, scaler = build(128.0)
    with watching(tmp_path / "journal", model, optimizer, scaler) as seen:
        saved = torch.load(tmp_path / "last.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if kept == "loaded":
            scaler.load_state_dict(saved["scaler"])
        train(model, optimizer, scaler)
    found = seen.findings()
    assert ([] if kept == "loaded" else ["scaler-not-restored"]) == list(found)
    for finding in found.values():
        assert "Adam was resumed after 5 steps" in finding.cause
        assert ("was read from the file and not loaded" if kept == "kept" else "and no scaler's") in finding.cause
        here = test_a_real_resume_is_found_with_what_its_checkpoint_holds
        assert (finding.caller or "").endswith(line_of(here, "        optimizer.load_state_dict(saved"))
