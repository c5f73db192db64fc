"""clip-before-unscale fires at the call, with the line that made it."""

from __future__ import annotations

from tests.agent.streams import Stream, findings, warm


def clipped(limit: float, scale: float) -> Stream:
    return warm(7).event("usage.clip_before_unscale", caller="loop/train.py:120", max_norm=limit, scale=scale)


def test_it_opens_at_once_and_names_the_line() -> None:
    finding = findings(clipped(1.0, 65536.0))["clip-before-unscale"]
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert "still multiplied by the scale of 65536 (2^16) to a norm of 1; unscaled, a norm of 1.5e-05" in finding.cause
    assert "scaler.unscale_(optimizer) before clip_grad_norm_ at loop/train.py:120" in finding.fix


def test_a_limit_that_was_multiplied_by_the_scale_is_meant_so() -> None:
    assert {} == findings(clipped(65536.0, 65536.0))
    assert {} == findings(clipped(32768.0, 65536.0))


def test_at_a_scale_near_1_nothing_is_lost() -> None:
    assert {} == findings(clipped(1.0, 16.0))
    assert {"clip-before-unscale"} == set(findings(clipped(1.0, 64.0)))


def test_it_is_told_once() -> None:
    stream = clipped(1.0, 65536.0).event("usage.clip_before_unscale", caller="b.py:1", max_norm=1.0, scale=1024.0)
    assert 1 == findings(stream)["clip-before-unscale"].times
