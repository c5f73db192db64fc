"""nonfinite-gradient in programs that scale their loss and skip steps themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.verdicts.nonfinite.test_nonfinite_gradient import found


def own_scaled() -> Stream:
    """A program with a loss scale of its own."""
    stream = Stream().autocast()
    stream.event("scaler.seen", enabled=True, scale=1024.0, own=True)
    for _ in range(20):
        stream.good(1024, norm=0.5, full=True)
    return stream


def test_a_bad_row_of_a_program_with_an_own_scale_may_be_a_skipped_and_an_applied_step() -> None:
    stream = own_scaled().bad(1024, last=3, applied=1, skipped=0)
    for _ in range(60):
        stream.good(512, norm=0.5)
    assert "nonfinite-gradient" not in findings(stream)


def test_a_bad_weight_proves_that_such_a_program_applied_it() -> None:
    stream = own_scaled().bad(1024, last=3, applied=1, skipped=0).good(1024, norm=0.5)
    stream.event("weights.nonfinite", tensors=["blocks.1.fc.weight"], count=1)
    finding = found(stream)
    assert ("page", 20, 21) == (finding.severity, finding.first_step, finding.opened_step)
    assert "1 such step was applied, and the weights contain NaN or Inf since then" in finding.cause


def test_clipped_norms_show_no_headroom_until_a_lower_scale_fails_too() -> None:
    first = own_scaled().bad(1024, last=3, inf=True).good(512, norm=0.5)
    assert "nonfinite-gradient" not in findings(first)
    for _ in range(10):
        first.good(512, norm=0.5)
    second = first.bad(512, last=3, inf=True).good(256, norm=0.5)
    assert "nonfinite-gradient" in findings(second)


def test_an_infinite_norm_whose_clip_turned_inf_into_nan_is_an_inf() -> None:
    stats: dict[str, Sequence[float]] = {"grad.norm": [np.nan if tensor == 3 else 0.0 for tensor in range(6)]}
    stream = own_scaled().step(loss=2.0, scale=1024, found_inf=1, applied=0, skipped=1, grad_norm=np.nan, stats=stats)
    assert "nonfinite-gradient" not in findings(stream.good(512, norm=0.5))
