"""What a backward pass that ran again proves of gradients with NaN or Inf."""

from __future__ import annotations

from typing import Any

import pytest

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import warm
from tests.agent.stream_judgement import findings
from tests.agent.verdicts.nonfinite.test_nonfinite_gradient import calm, found

SQRT: dict[str, Any] = {
    "kind": "backward",
    "direction": "backward",
    "op": "SqrtBackward0",
    "dtype": "float32",
    "confidence": "graph",
}
SQRT |= {"module": "blocks.1", "absmax": 9e3, "nans": 0, "infs": 4, "caller": "train.py:12"}


def skipped(**data: Any) -> dict[str, Finding]:
    """Two skipped steps at a scale that is too high, and the origin that the second one shows."""
    stream = warm(40).bad(2.0**24, last=3, inf=True).bad(2.0**23, last=3, inf=True)
    return findings(stream.event("origin.found", since=1, **SQRT | data))


@pytest.mark.parametrize("trial", ["undefined", "rounded", "kernel", "differs"])
def test_a_backward_pass_that_ran_again_proves_it_at_any_scale(trial: str) -> None:
    finding = skipped(trial=trial, exact=2.0, reproducer="reproducers/step-41.py")["nonfinite-gradient"]
    assert 41 == finding.opened_step
    assert (
        "In the backward pass, blocks.1 (SqrtBackward0, float32) made the NaN or Inf, from gradients of"
        in finding.cause
    )
    assert "overflow" not in finding.cause
    assert (trial, "SqrtBackward0") == (finding.evidence["trial"], finding.evidence["op"])
    assert finding.fix.endswith("reproducers/step-41.py in the run's folder shows it without the training.")


def test_the_module_before_the_operator_is_named_if_the_gradients_have_the_order_of_the_model() -> None:
    for first, title, module in (
        (0, "The backward pass of Sqrt in blocks.1, after fc, makes NaN or Inf", "blocks.1.fc"),
        (2, "The backward pass of Sqrt in blocks.1 makes NaN or Inf", "blocks.1"),
    ):
        stream = calm().bad(first=first, last=3).bad(first=first, last=3)
        finding = found(stream.event("origin.found", since=1, **SQRT))
        assert (title, module) == (finding.title, finding.module)


@pytest.mark.parametrize("trial", ["range", "unsteady", ""])
def test_a_backward_pass_that_overflows_proves_nothing(trial: str) -> None:
    assert "nonfinite-gradient" not in skipped(trial=trial)


def test_an_overflow_that_ran_again_does_not_prove_by_its_nan_alone() -> None:
    assert "nonfinite-gradient" in skipped(absmax=3.0, nans=4, infs=0)
    assert "nonfinite-gradient" not in skipped(absmax=3.0, nans=4, infs=0, trial="range")


def test_the_evidence_of_a_trial_is_absent_without_one() -> None:
    assert not {"trial", "op", "reproducer"} & found(calm().bad(65536, last=3)).evidence.keys()
