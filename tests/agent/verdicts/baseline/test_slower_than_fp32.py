"""slower-than-fp32 compares the same steps of both, per sample where batches differ, and needs more than noise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ammeter.verdicts.framework.run_comparison import RunComparison
from tests.agent.pairs import check_words, course, judged


def always(**scalars: float) -> Callable[[int], dict[str, float]]:
    """The same in every step."""
    return lambda step: scalars


def slow(times: float, **more: float) -> dict[str, float]:
    return {"step_seconds": 0.01 * times, **more}


def test_a_run_in_half_precision_that_takes_longer_is_named_with_both_times() -> None:
    run = course(precision="bfloat16", row=lambda step: slow(1.5, low_precision_share=1.0))
    finding = judged(run, course(name="monday"))["slower-than-fp32"]
    check_words(finding)
    assert ("ticket", 64, 199) == (finding.severity, finding.first_step, finding.opened_step)
    assert (
        'Training in bfloat16 is slower than the baseline (run "monday") in float32: a step takes 15 ms against 10 ms'
        in finding.cause
    )
    assert "the medians of steps 64 to 199 of both runs" in finding.cause
    assert "Training takes 1.50 times as long as in the float32 baseline" == finding.title
    assert "torch.autograd.set_detect_anomaly(True)" in finding.fix


def test_work_that_stayed_in_float32_is_told_as_the_reason() -> None:
    run = course(precision="float16", row=lambda step: slow(1.5, low_precision_share=0.4))
    finding = judged(run, course())["slower-than-fp32"]
    assert "Only 40 % of the FLOPs that could run in float16 do so." in finding.cause
    assert finding.fix.startswith("Move the matrix products into autocast")


def test_a_faster_run_and_one_within_a_twentieth_are_fine() -> None:
    for seconds in (0.005, 0.01, 0.0104):
        assert {} == judged(course(precision="float16", row=always(step_seconds=seconds)), course())


def test_a_median_that_a_few_slow_steps_make_is_no_reason() -> None:
    noisy = course(precision="float16", row=lambda step: slow(1.1 if step % 5 < 3 else 0.9))
    assert {} == judged(noisy, course())


def test_slow_steps_of_the_warm_up_do_not_count() -> None:
    assert {} == judged(course(precision="float16", row=lambda step: slow(9.0 if step < 64 else 1.0)), course())


def test_with_other_batches_nothing_is_said_unless_they_may_differ_then_the_time_of_a_sample_counts() -> None:
    run = course(precision="float16", row=lambda step: slow(1.5, samples=16))
    base = course(row=lambda step: {"samples": 8})
    assert {} == judged(run, base, ignored=frozenset(("batch",)))
    slower = course(precision="float16", row=lambda step: slow(3.0, samples=16))
    assert ["not-comparable"] == list(judged(slower, base))
    found = judged(slower, base, ignored=frozenset(("samples",)))["slower-than-fp32"]
    assert "a sample takes 1.87 ms against 1.25 ms" in found.cause


@pytest.mark.parametrize(("precision", "baseline"), [("float32", "float32"), ("float16", "bfloat16")])
def test_other_pairs_are_not_its_matter(precision: str, baseline: str) -> None:
    found = judged(course(precision=precision, row=lambda step: slow(3)), course(precision=baseline))
    assert "slower-than-fp32" not in found


def test_few_steps_say_nothing() -> None:
    assert RunComparison(course(28), course()).speed is None
    assert RunComparison(course(29), course()).speed is not None
