"""pointless-scaler fires where a scaler works on bfloat16, and says how to do without."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import line_of, watching
from tests.agent.verdicts.scaling import small, train


def scaled(scale: float | None = 65536.0) -> Stream:
    stream = Stream().autocast("bfloat16").good(65536.0)
    return stream.event("usage.scaler_with_bf16", caller="loop/train.py:31", scale=scale)


def test_it_opens_at_once_and_names_the_line_and_the_scale() -> None:
    finding = findings(scaled())["pointless-scaler"]
    assert ("ticket", 0, 0) == (finding.severity, finding.first_step, finding.opened_step)
    assert "multiplies the loss by 65536 (2^16) at loop/train.py:31" in finding.cause
    assert "autocast uses bfloat16, which has the range of float32" in finding.cause
    assert "replace scaler.scale(loss).backward() at loop/train.py:31 by loss.backward()" in finding.fix
    assert "enabled=dtype == torch.float16" in finding.fix


def test_a_scale_that_is_not_known_yet_is_left_out() -> None:
    assert "multiplies the loss at loop/train.py:31, although" in findings(scaled(None))["pointless-scaler"].cause


def test_bfloat16_without_a_scaler_and_float16_with_one_are_fine() -> None:
    assert {} == findings(warm(scale=None))
    assert {} == findings(warm())


def test_it_is_told_once() -> None:
    stream = scaled().good(65536.0).event("usage.scaler_with_bf16", caller="b.py:1", scale=2.0)
    finding = findings(stream)["pointless-scaler"]
    assert (1, 65536.0) == (finding.times, finding.evidence["scale"])


def test_a_real_scaler_is_found_with_bfloat16_and_not_with_float16(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        (model, optimizer), scaler = small(), torch.amp.GradScaler("cpu", init_scale=64.0)
        with watching(tmp_path, model, optimizer, scaler) as seen:
            train(model, optimizer, scaler, dtype)
        found = seen.findings()
        assert (["pointless-scaler"] if dtype is torch.bfloat16 else []) == list(found)
        for finding in found.values():
            assert (finding.caller or "").endswith(line_of(train, "scaler.scale"))
            assert "by 64 (2^6)" in finding.cause
