"""scale-underflowed fires at the first step whose scale has no inverse, and not one step before."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.training import watching


def found(stream: Stream) -> Finding:
    return findings(stream)["scale-underflowed"]


@pytest.mark.parametrize("scale", [2.0**-128, 2.0**-140, 0.0])
def test_the_first_step_at_a_scale_without_an_inverse_opens_it(scale: float) -> None:
    finding = found(warm(40).good(scale))
    assert ("page", 40, 40) == (finding.severity, finding.first_step, finding.opened_step)
    assert "after 65536 (2^16) at step 39: a skipped step halves it, so the program has set it" in finding.cause
    assert "1 such step was applied; no reading has found NaN or Inf in the weights since" in finding.cause
    assert "Remove what sets the scale at step 40" in finding.fix


def test_its_words_tell_the_scale() -> None:
    finding = found(warm(40).good(2.0**-128).good(2.0**-128))
    assert "The loss scale was set to 2.94e-39 (2^-128), where unscaling makes NaN" == finding.title
    assert "2 such steps were applied" in finding.cause
    assert 65536 == finding.evidence["scale_before"]


def test_one_that_was_skipped_did_no_harm_yet() -> None:
    assert "So far no such step was applied" in found(warm(40).bad(2.0**-129, last=5)).cause


@pytest.mark.parametrize("scale", [2.0**-127, 1e-6, 0.5, 1.0])
def test_a_small_scale_that_has_an_inverse_keeps_it_silent(scale: float) -> None:
    assert "scale-underflowed" not in findings(warm(40).good(scale).good(scale))


def test_the_words_on_a_scaler_of_the_program_do_not_mention_grad_scaler() -> None:
    finding = found(warm(40).event("scaler.seen", own=True, enabled=True, scale=65536.0).bad(2.0**-129, last=5))
    assert "1/scale is Inf in float32: gradients multiplied by it become Inf and NaN" in finding.cause
    assert "GradScaler" not in finding.cause + finding.fix


def test_without_a_scaler_it_is_silent() -> None:
    assert {} == findings(warm(40, scale=None))


def test_ten_steps_at_a_scale_with_an_inverse_end_it() -> None:
    stream = warm(40).good(0.0)
    for _ in range(9):
        stream.good(1024)
    assert found(stream).active
    assert not found(stream.good(1024)).active


def test_where_the_scale_collapsed_on_the_way_that_is_the_cause() -> None:
    stream = warm()
    for halvings in range(146):
        stream.bad(2.0 ** (16 - halvings), first=3, last=3, inf=True)
    causes = explain([("stream", finding) for finding in findings(stream).values()])
    assert ["scale-collapse"] == [cause.finding.verdict for cause in causes]
    assert "scale-underflowed" in [consequence.verdict for consequence in causes[0].consequences]


def test_a_real_scaler_without_an_inverse_poisons_the_weights_in_one_step(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-130)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(4):
            scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert not torch.isfinite(model.weight).any()
    findings = seen.findings()
    assert (0, 1) == (findings["scale-underflowed"].first_step, findings["scale-underflowed"].evidence["steps_applied"])
    causes = explain([("stream", finding) for finding in findings.values()])
    assert ["scale-underflowed"] == [cause.finding.verdict for cause in causes]
    assert math.isclose(2.0**-130, findings["scale-underflowed"].evidence["scale"])
