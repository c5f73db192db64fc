"""scaler-rebuilt fires where another scaler takes over, and says what that costs in either direction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter.verdicts.causality import explain
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import line_of, watching
from tests.agent.verdicts.scaling import small, train


def rebuilt(scale: float = 65536.0, before: float | None = 1024.0) -> Stream:
    return warm(7).event(
        "usage.scaler_rebuilt", caller="loop/train.py:31", optimizer="AdamW", scale=scale, scale_before=before
    )


def test_it_opens_at_once_with_the_line_and_both_scales() -> None:
    finding = findings(rebuilt())["scaler-rebuilt"]
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert (
        "From step 6 on, another GradScaler steps AdamW at loop/train.py:31, with an initial scale of 65536 (2^16)"
        in (finding.cause)
    )
    assert "the previous one had reached 1024 (2^10)" in finding.cause
    assert "about 6 steps are skipped" in finding.cause
    assert "new.load_state_dict(old.state_dict())" in finding.fix


def test_a_scale_that_falls_back_costs_small_gradients() -> None:
    assert "for 4 growth intervals small gradients that the previous scale preserved may become zero" in (
        findings(rebuilt(65536.0, 2.0**20))["scaler-rebuilt"].cause
    )


def test_a_last_scale_that_is_not_known_or_the_same_is_said_in_general() -> None:
    for before in (None, 65536.0):
        assert "steps may be skipped, or small" in findings(rebuilt(before=before))["scaler-rebuilt"].cause


def test_one_scaler_for_the_whole_run_is_fine() -> None:
    assert {} == findings(warm(100))


def test_it_is_told_once() -> None:
    stream = rebuilt().good(65536.0).event("usage.scaler_rebuilt", caller="b.py:1", optimizer="A", scale=2.0)
    finding = findings(stream)["scaler-rebuilt"]
    assert (1, "loop/train.py:31") == (finding.times, finding.caller)


def test_the_skips_of_each_new_scaler_are_listed_inside() -> None:
    stream = warm(40, scale=1024.0)
    for epoch in range(6):
        for halvings in range(4):
            stream.bad(2.0 ** (14 - halvings), last=3, inf=True)
        if not epoch:
            stream.event("usage.scaler_rebuilt", caller="a.py:1", optimizer="SGD", scale=2.0**14, scale_before=1024.0)
        for _ in range(12):
            stream.good(1024.0)
    found = findings(stream)
    assert {"scaler-rebuilt", "overflow-storm"} == set(found)
    (cause,) = explain([("stream", finding) for finding in found.values()])
    assert "scaler-rebuilt" == cause.finding.verdict


def test_a_real_scaler_for_each_epoch_is_found_and_one_for_all_is_not(tmp_path: Path) -> None:
    for each_epoch in (True, False):
        (model, optimizer), scaler = small(), epoch()
        with watching(tmp_path, model, optimizer, scaler) as seen:
            train(model, optimizer, scaler)
            train(model, optimizer, epoch() if each_epoch else scaler)
        found = seen.findings()
        assert (["scaler-rebuilt"] if each_epoch else []) == list(found)
        for finding in found.values():
            assert 5 == finding.first_step
            assert (finding.caller or "").endswith(line_of(train, "scaler.step"))
            assert "scale of 64 (2^6), whereas the previous one had reached 256 (2^8)" in finding.cause


def epoch() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
