"""clip-before-unscale fires at the call, with the line that made it."""

from __future__ import annotations

import pytest

from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings


def clipped(limit: float, scale: float) -> Stream:
    return warm(7).event("usage.clip_before_unscale", caller="loop/train.py:120", max_norm=limit, scale=scale)


def test_it_opens_at_once_and_names_the_line() -> None:
    finding = findings(clipped(1.0, 65536.0))["clip-before-unscale"]
    assert ("ticket", 6, 6) == (finding.severity, finding.first_step, finding.opened_step)
    assert "loop/train.py:120" == finding.caller
    assert "It limits their norm to 1; unscaled, a norm of 1.5e-05 remains." in finding.cause
    assert "scaler.unscale_(optimizer) before clip_grad_norm_ at loop/train.py:120" in finding.fix


def test_a_clip_by_value_is_called_by_its_name() -> None:
    stream = warm(7).event("usage.clip_before_unscale", caller="loop/train.py:120", clip_value=0.5, scale=1024.0)
    finding = findings(stream)["clip-before-unscale"]
    assert finding.cause.startswith(
        "clip_grad_value_ at loop/train.py:120 clips gradients that are still multiplied by"
    )
    assert "It limits each value to 0.5; unscaled, values of 0.00049 remain." in finding.cause
    assert "scaler.unscale_(optimizer) before clip_grad_value_ at loop/train.py:120" in finding.fix


def test_a_limit_that_was_multiplied_by_the_scale_is_meant_so() -> None:
    assert {} == findings(clipped(65536.0, 65536.0))
    assert {} == findings(clipped(32768.0, 65536.0))


def test_at_a_scale_near_1_nothing_is_lost() -> None:
    assert {} == findings(clipped(1.0, 16.0))
    assert {"clip-before-unscale"} == set(findings(clipped(1.0, 64.0)))


def by_hand(steps: int, scale: float = 65536.0, limit: float = 1.0, moves: float = 1.0) -> Stream:
    """A run whose scaled gradients have one norm while the share of each tensor changes."""
    stream = warm(7)
    for _ in range(steps):
        shares = 1 + moves * stream.dice.random(6)
        norms = limit / scale * shares / float((shares**2).sum()) ** 0.5
        stream.good(scale, norm=limit / scale * (1 - 1e-6 * stream.dice.random()), stats={"grad.norm": list(norms)})
    return stream


def test_a_clip_written_by_hand_is_known_by_the_norm_it_leaves() -> None:
    assert {} == findings(by_hand(19))
    finding = findings(by_hand(20))["clip-before-unscale"]
    assert ("ticket", 7, 26) == (finding.severity, finding.first_step, finding.opened_step)
    assert finding.caller is None
    assert (
        "For 20 steps the scaled norm was 1, constant to a thousandth, while its parts changed; unscaled, a norm"
        in (finding.cause)
    )
    assert "call scaler.unscale_(optimizer) before it" in finding.fix


def dips(*scaled_norms: float, usual: int = 30, scale: float = 1024.0, moves: float = 1.0) -> Stream:
    """A run in which every fifth scaled norm is one of these, whose parts change."""
    stream = Stream()
    for _ in range(usual):
        stream.good(scale, norm=1 + stream.dice.random())
    for norm in scaled_norms:
        for _ in range(4):
            stream.good(scale, norm=1 + stream.dice.random())
        shares = 1 + moves * stream.dice.random(6)
        parts = norm / scale * shares / float((shares**2).sum()) ** 0.5
        stream.good(scale, norm=norm / scale, stats={"grad.norm": list(parts)})
    return stream


def test_a_clip_written_by_hand_is_known_if_it_happens_in_some_steps() -> None:
    assert {} == findings(dips(0.5123, 0.5123))
    stream = dips(0.5123, 0.5123 * (1 - 2e-6), 0.5123).event("usage.changed_while_scaled", caller="loop/train.py:9")
    finding = findings(stream)["clip-before-unscale"]
    assert (34, 44) == (finding.first_step, finding.opened_step)
    assert "In 3 steps the scaled norm was 0.5123, the same each time, while its parts changed" in finding.cause
    assert "the unscaled norm of other steps is 1." in finding.cause


def test_such_steps_are_known_in_a_program_that_scales_its_loss_itself() -> None:
    stream = Stream().event("scaler.seen", enabled=True, scale=1024.0, own=True)
    for frame in dips(0.5123, 0.5123, 0.5123).frames:
        stream.frames.append(frame)
    finding = findings(stream)["clip-before-unscale"]
    assert "Gradients are limited before they are unscaled" == finding.title
    assert "divide the gradients by the scale before it." in finding.fix


def test_the_line_of_the_unscaling_is_named_for_a_clip_written_by_hand() -> None:
    stream = Stream().event("usage.changed_while_scaled", caller="loop/train.py:9")
    for frame in dips(0.5123, 0.5123, 0.5123).frames:
        stream.frames.append(frame)
    finding = findings(stream)["clip-before-unscale"]
    assert "loop/train.py:9" == finding.caller
    assert "so after the call at loop/train.py:9 unscales them they are far too small" in finding.cause
    assert "between backward() and the call at loop/train.py:9, and call scaler.unscale_" in finding.fix


def test_small_norms_that_differ_or_are_no_smaller_than_the_others_are_fine() -> None:
    assert {} == findings(dips(0.5123, 0.5124, 0.5123, 0.5122, 0.5123))
    assert {} == findings(dips(*[200.0] * 9))
    assert {} == findings(dips(*[0.5123] * 9, moves=1e-5)), "one batch recurs while the weights stand still"
    assert {} == findings(dips(*[0.5123] * 9, usual=0, scale=8.0))


@pytest.mark.parametrize("limit", [0.1, 0.5, 1.0, 2.5, 10.0])
def test_a_single_clip_written_by_hand_is_known_by_its_round_limit(limit: float) -> None:
    stream = dips(limit, scale=65536.0)
    finding = findings(stream)["clip-before-unscale"]
    assert (34, 34) == (finding.first_step, finding.opened_step)
    assert f"At step 34 the scaled norm was {limit:g}, a round number, as limits are; the" in finding.cause
    assert limit == pytest.approx(finding.evidence["max_norm"])


def test_a_single_small_norm_is_fine_if_it_is_not_round_or_not_small_or_comes_early() -> None:
    assert {} == findings(dips(1.001, 0.51, 0.0999, 3.3, 1e-9 / 3, scale=65536.0))
    assert {} == findings(dips(50.0, scale=1024.0))
    assert {} == findings(dips(1.0, usual=5, scale=65536.0))


def test_a_norm_that_fell_for_good_is_the_usual_one_after_a_while() -> None:
    stream = dips()
    for _ in range(100):
        stream.good(1024.0, norm=0.01 + 0.01 * stream.dice.random())
    assert {} == findings(stream)


def test_a_norm_that_stands_still_with_all_its_parts_is_a_run_that_repeats_itself() -> None:
    assert {} == findings(by_hand(60, moves=0.01))


def test_a_norm_that_is_limited_after_unscaling_or_at_scale_1_is_fine() -> None:
    assert {} == findings(by_hand(60, limit=65536.0))
    assert {} == findings(by_hand(60, scale=1.0, limit=0.01))


def test_it_is_told_once() -> None:
    stream = clipped(1.0, 65536.0).event("usage.clip_before_unscale", caller="b.py:1", max_norm=1.0, scale=1024.0)
    assert 1 == findings(stream)["clip-before-unscale"].times
