"""rollout-mismatch fires when a logged difference of trainer and sampler grows, and not for one that was there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from ammeter.verdicts.evaluation.rollout_mismatch import MIN_DIFFERENCE, unit_of
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken, healthy

NAME = "rollout-mismatch"


def logged(values: Sequence[float], name: str = "mismatch_kl") -> Stream:
    stream = warm(0)
    for value in values:
        stream.good(65536).event("values.logged", **{name: value})
    return stream


@broken
def rollout_mismatch() -> Stream:
    """The weights no longer reach the sampler from step 30 on."""
    return logged([0.001] * 30 + [0.05, 0.06, 0.07, 0.08])


def found(values: Sequence[float], name: str = "mismatch_kl") -> Finding | None:
    return findings(logged(values, name)).get(NAME)


def test_three_values_of_ten_times_the_start_open_it() -> None:
    finding = findings(rollout_mismatch())[NAME]
    assert ("ticket", 30, 32) == (finding.severity, finding.first_step, finding.opened_step)
    assert "logged as mismatch_kl, is 0.07 since" in finding.cause
    assert "70 times as much" in finding.cause


def test_two_values_are_not_enough_and_three_small_ones_close_it() -> None:
    assert found([0.001] * 5 + [0.5, 0.5, 0.001] * 4) is None
    over = found([0.001] * 5 + [0.5] * 3 + [0.001] * 3)
    assert over is not None
    assert not over.active


def test_a_difference_of_log_probabilities_counts_from_a_divergence_of_a_hundredth_on() -> None:
    name = "sampling/sampling_logp_difference/mean"
    assert found([0.001] * 5 + [0.9 * MIN_DIFFERENCE] * 9, name) is None
    finding = found([0.001] * 5 + [-0.2] * 3, name)
    assert finding is not None
    assert "That is a KL divergence of about 0.02 or more." in finding.cause


@healthy
def a_mismatch_of_two_kernels_that_is_there_from_the_start() -> Stream:
    return logged([0.02, 0.03] * 20).bye()


@healthy
def a_mismatch_that_grows_and_stays_small() -> Stream:
    return logged([1e-6 * step for step in range(200)]).bye()


@healthy
def the_divergence_from_the_reference_policy_grows() -> Stream:
    stream = logged([0.0001] * 9 + [0.2] * 9, "kl_ref")
    for _ in range(9):
        stream.good(65536).event("values.logged", **{"rollout/kl": 0.3, "approx_kl": 0.4})
    return stream.bye()


def test_values_that_are_not_finite_are_left_out() -> None:
    assert found([0.001] * 5 + [math.nan, math.inf] * 9) is None


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("mismatch_kl", "kl"),
        ("vllm_kl", "kl"),
        ("rollout_corr/kl", "kl"),
        ("rollout_logprob_diff", "difference"),
        ("train_rollout_logprob_abs_diff", "difference"),
        ("sampling/sampling_logp_difference/mean", "difference"),
        ("sampling/sampling_logp_difference/max", ""),
        ("rollout/kl", ""),
        ("kl", ""),
        ("kl_loss", ""),
        ("ref_kl", ""),
        ("rollout_reward_diff", ""),
    ],
)
def test_a_mismatch_is_known_by_its_name(name: str, unit: str) -> None:
    assert unit == unit_of(name)
