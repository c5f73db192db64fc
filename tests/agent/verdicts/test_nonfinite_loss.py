"""nonfinite-loss fires at the step itself, and says whether the weights took harm."""

from __future__ import annotations

import math

from ammeter.verdicts.finding import Finding
from tests.agent.streams import Stream, findings, warm


def found(stream: Stream) -> Finding:
    return findings(stream)["nonfinite-loss"]


def test_it_opens_at_once() -> None:
    finding = found(warm(40, scale=None).bad(last=5, loss=math.nan))
    assert ("page", 40, 40) == (finding.severity, finding.first_step, finding.opened_step)
    assert "Loss is NaN at step 40" == finding.title


def test_one_batch_that_the_scaler_skipped_can_wait_and_two_cannot() -> None:
    once = warm().bad(65536, last=5, loss=math.nan)
    assert "ticket" == found(once).severity
    assert "The scaler skipped it, so the weights are unharmed." in found(once).cause
    assert "page" == found(once.bad(32768, last=5, loss=math.nan)).severity


def test_an_applied_step_with_broken_gradients_poisons_the_weights() -> None:
    finding = found(warm(scale=None).bad(last=5, loss=math.nan))
    assert "so the weights are poisoned. No scaler is in use" in finding.cause
    assert "All 6 gradients are non-finite, so it came from the forward pass or the loss." in finding.cause
    assert "restore a checkpoint from before step 40" in finding.fix
    assert finding.evidence["weights_at_risk"]


def test_an_applied_step_with_finite_gradients_does_not() -> None:
    finding = found(warm().good(65536, loss=math.inf))
    assert "Loss is infinite at step 40" == finding.title
    assert "The gradients were finite, so no step was skipped" in finding.cause
    assert "Stop the run: it wastes its steps." in finding.fix
    assert not finding.evidence["weights_at_risk"]
    assert "Infinity" == finding.evidence["loss"]


def test_where_the_gradients_were_not_read_it_says_so() -> None:
    finding = found(warm(scale=None).step(loss=math.nan, applied=1, skipped=0))
    assert "its gradients were not read: take the weights for poisoned" in finding.cause


def test_a_loss_that_was_not_measured_is_no_nan() -> None:
    assert {} == findings(warm().step(applied=1, skipped=0, scale=65536))


def test_ten_finite_losses_end_it() -> None:
    stream = warm().bad(65536, last=5, loss=math.nan)
    for _ in range(9):
        stream.good(32768)
    assert found(stream).active
    assert not found(stream.good(32768)).active


def test_the_gradients_that_are_nan_with_it_are_no_finding_of_their_own() -> None:
    assert {"nonfinite-loss"} == set(findings(warm().bad(65536, last=5, loss=math.nan).good(32768)))
