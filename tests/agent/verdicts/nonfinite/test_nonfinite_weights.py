"""nonfinite-weights fires as soon as a reading shows them, says since when, and where to go back to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_values import poisoned, saved
from tests.agent.training import watching

MOMENTS = {"tensors": ["head.weight.exp_avg_sq"], "count": 1, "elements": 3}


def found(stream: Stream) -> Finding:
    return findings(stream)["nonfinite-weights"]


def first_cause(stream: Stream) -> str:
    return explain([("stream", finding) for finding in findings(stream).values()])[0].finding.verdict


def test_a_reading_that_shows_it_opens_it_at_its_step() -> None:
    finding = found(poisoned(warm(40), "blocks.0.fc.weight", "head.weight", last_finite=37))
    assert ("page", 39, 39) == (finding.severity, finding.first_step, finding.opened_step)
    assert "blocks.0.fc.weight contains NaN or Inf, read at step 39" == finding.title
    assert "2 weight tensors contain NaN or Inf, blocks.0.fc.weight among them. At step 37" in finding.cause
    assert ("blocks.0.fc.weight", "blocks.0.fc") == (finding.tensor, finding.module)
    assert "Then restore a checkpoint from before step 39, and check its weights" in finding.fix


def test_a_finite_part_of_the_weights_does_not_tell_when_it_began() -> None:
    part = {"last_finite": None, "last_finite_part": 37}
    finding = found(warm(40).event("weights.nonfinite", tensors=["embed.weight"], count=1, elements=900, **part))
    assert "At step 37 the part of the weights that was read was finite; elements that were not read" in finding.cause
    assert "Check the applied steps up to 39, first those from 37 on:" in finding.fix
    assert (None, 37) == (finding.evidence["last_finite_step"], finding.evidence["last_finite_part_step"])


def test_losses_that_the_scaler_skipped_began_behind_the_weights() -> None:
    stream = warm(40).bad(65536, last=5, loss=math.nan).bad(32768, last=5, loss=math.nan)
    finding = found(poisoned(stream, "embed.weight"))
    assert 40 == finding.first_step
    assert "so the weights were non-finite before step 40." in finding.cause
    assert "Then restore a checkpoint from before step 39, and" in finding.fix
    assert "nonfinite-weights" == first_cause(stream)


def test_weights_that_a_bad_loss_poisoned_are_its_consequence() -> None:
    stream = poisoned(warm(40, scale=None).bad(last=5, loss=math.nan), "embed.weight", last_finite=39)
    assert 40 == found(stream).first_step
    assert "nonfinite-loss" == first_cause(stream)


def test_weights_that_a_bad_gradient_poisoned_are_its_consequence() -> None:
    stream = warm(40, scale=None).bad(last=3).bad(last=5, loss=math.nan)
    assert "nonfinite-gradient" == first_cause(poisoned(stream, "embed.weight"))


def test_weights_that_were_seen_to_be_bad_before_the_loss_are_its_cause() -> None:
    stream = poisoned(warm(40, scale=None), "embed.weight").bad(last=5, loss=math.nan)
    assert "nonfinite-weights" == first_cause(stream.bad(last=5, loss=math.nan))


WEIGHT = {"kind": "weights", "module": "embed", "tensor": "embed.weight", "confidence": "graph"}


def applied_with_nan(since: int, good: int = 40) -> Stream:
    """Steps without a scaler with a loss of NaN, and a NaN weight that the graph shows in the first one, or later."""
    stream = warm(good, scale=None)
    for _ in range(since + 1):
        stream.bad(last=5, loss=math.nan)
    return poisoned(stream.event("origin.found", **WEIGHT, since=since), "head.weight", "embed.weight")


def test_a_weight_that_the_first_bad_step_began_with_is_the_cause() -> None:
    finding = found(applied_with_nan(since=0))
    assert "nonfinite-weights" == first_cause(applied_with_nan(since=0))
    assert (40, "embed.weight", "embed") == (finding.first_step, finding.tensor, finding.module)
    assert "embed.weight contained NaN or Inf before step 40 computed its loss. After that step, 2" in finding.cause
    assert "Then restore a checkpoint from before step 39, and" in finding.fix


def test_a_weight_that_is_read_after_an_applied_bad_step_is_no_cause() -> None:
    assert "nonfinite-loss" == first_cause(applied_with_nan(since=1))
    assert "contained" not in found(applied_with_nan(since=1)).cause


def test_weights_that_were_bad_before_the_first_step_have_no_step_to_go_back_to() -> None:
    fix = found(applied_with_nan(since=0, good=0)).fix
    assert "Then restore a checkpoint with finite weights, and" in fix
    assert "Check what came before the first step that was watched: " in fix


def test_it_names_the_newest_checkpoint_from_before() -> None:
    stream = saved(saved(warm(20), "/runs/a.pt").good(65536), "/runs/b.pt").good(65536).good(65536)
    finding = found(saved(poisoned(stream, "embed.weight"), "/runs/c.pt"))
    assert (
        "Then restore /runs/b.pt, saved at step 20, and check its weights and optimizer state with torch.isfinite"
        in finding.fix
    )
    assert ("/runs/b.pt", 20) == (finding.evidence["checkpoint"], finding.evidence["checkpoint_step"])


def test_a_checkpoint_that_was_written_over_is_not_named() -> None:
    stream = poisoned(saved(warm(20), "/runs/last.pt").good(65536).good(65536), "embed.weight")
    assert "/runs/last.pt" == found(stream).evidence["checkpoint"]
    finding = found(saved(stream.good(65536), "/runs/last.pt"))
    assert finding.evidence["checkpoint"] is None
    assert "Then restore a checkpoint from before step 21, and" in finding.fix


def test_a_file_without_weights_is_no_checkpoint_to_go_back_to() -> None:
    stream = saved(saved(warm(20), "/runs/scaler.pt", weights={}), "").good(65536)
    assert found(poisoned(stream, "embed.weight")).evidence["checkpoint"] is None


def test_moments_alone_are_told_as_such() -> None:
    finding = found(warm(40).event("moments.nonfinite", **MOMENTS))
    assert "The optimizer's state contains NaN or Inf, read at step 39" == finding.title
    assert "contains NaN or Inf in 1 tensor, head.weight.exp_avg_sq." in finding.cause
    assert "head" == finding.module


def test_finite_losses_and_a_finite_reading_end_it_but_not_for_moments() -> None:
    stream = poisoned(warm(40), "embed.weight")
    for _ in range(20):
        stream.good(65536)
    assert found(stream).active
    assert not found(stream.good(65536, weights_nonfinite=0)).active
    stream.event("moments.nonfinite", **MOMENTS)
    for _ in range(20):
        stream.good(65536, weights_nonfinite=0)
    assert found(stream).active


def test_a_reading_that_still_shows_it_keeps_it_open() -> None:
    stream = poisoned(warm(40), "embed.weight")
    for step in range(30):
        stream.good(65536, weights_nonfinite=step % 2)
    assert found(stream).active


@pytest.mark.parametrize("scaled", [True, False])
def test_a_real_run_whose_weight_turns_nan_is_told_to_go_back(scaled: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    head = torch.nn.Linear(8, 2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    with watching(tmp_path / "journal", model, optimizer, scaler) as seen:
        for step in range(12):
            if step == 4:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "4.pt")
            if step == 8:
                with torch.no_grad():
                    head.weight[1, 3] = math.nan
            scaler.scale(model(torch.randn(5, 6)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    finding = seen.findings()["nonfinite-weights"]
    assert "page" == finding.severity
    assert 8 == finding.first_step
    assert str(tmp_path / "4.pt") == finding.evidence["checkpoint"]
    assert ("2.weight", "2") == (finding.tensor, finding.module)
    assert finding == explain([("stream", each) for each in seen.findings().values()])[0].finding


def test_before_its_first_step_a_run_has_no_checkpoint_to_go_back_to() -> None:
    stream = poisoned(warm(1), "embed.weight", last_finite=None).good(65536)
    fix = findings(stream)["nonfinite-weights"].fix
    assert "Then restore the state that this run started from, and" in fix


def test_a_reading_of_all_weights_at_the_same_step_completes_that_of_some() -> None:
    some = poisoned(warm(40), "blocks.0.fc.weight", last_finite=37)
    assert 1 == found(some).evidence["weights"]
    everything = poisoned(some, "blocks.0.fc.weight", "head.weight", "embed.weight")
    assert "3 weight tensors contain NaN or Inf, blocks.0.fc.weight among them. At step 37" in found(everything).cause
    assert 3 == found(poisoned(everything.good(65536), "head.weight")).evidence["weights"]
