"""stagnation fires where neither loss nor weights have moved since the start, not at a floor or a schedule's end."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from ammeter.recording.schedule import budget as schedule
from ammeter.verdicts.causality import explain
from ammeter.verdicts.dynamics.stagnation import MEDIAN_LOSSES, MIN_STEPS
from ammeter.verdicts.framework.finding import Finding
from tests.agent import streams_run
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.training import watching


def still(steps: int, ratio: float = 1e-7, loss: float = 4.8, stream: Stream | None = None, **more: float) -> Stream:
    stream = stream or Stream()
    for _ in range(steps):
        stream.good(loss=loss, update_ratio=ratio, **more)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["stagnation"]


def test_two_hundred_applied_steps_open_it_at_the_end_of_the_beginning() -> None:
    assert {} == findings(still(MIN_STEPS - 1))
    finding = found(still(MIN_STEPS))
    assert ("ticket", MEDIAN_LOSSES - 1, MIN_STEPS - 1) == (finding.severity, finding.first_step, finding.opened_step)


def test_steps_that_were_skipped_do_not_count() -> None:
    assert {} == findings(still(MIN_STEPS, applied=0))


def test_weights_that_move_keep_it_silent() -> None:
    assert {} == findings(still(600, ratio=2e-5))


def test_a_loss_that_fell_by_a_twentieth_settles_it_for_good() -> None:
    assert {} == findings(still(600, loss=4.5, stream=still(40)))


def test_a_loss_that_only_scatters_has_not_fallen() -> None:
    """As that of a few images in a batch: here their median comes to lie 3 % lower."""
    stream = Stream()
    for step in range(280):
        low = step > 150 and step % 2
        stream.good(loss=(2.6 if low else 2.75) + 0.1 * (step % 3 - 1), update_ratio=1e-7)
    assert ["stagnation"] == [finding.verdict for finding in findings(stream).values()]


def test_a_loss_that_has_nothing_left_to_give_keeps_it_silent() -> None:
    assert {} == findings(still(600, loss=1e-4))


def test_readings_of_the_warm_up_do_not_count() -> None:
    stream = still(60)
    for _ in range(400):
        stream.good(loss=4.8)
    assert {} == findings(stream)


def test_a_short_run_with_few_readings_is_judged_at_its_two_hundredth_step() -> None:
    for ratio, expected in ((1e-9, {"stagnation"}), (5e-6, set())):  # a warm-up may have come to more by then
        stream = Stream()
        for step in range(210):
            more = {"update_ratio": ratio} if step in (40, 41, 128) else {}
            stream.good(loss=2.1, **more)
        assert expected == set(findings(stream))


@pytest.mark.parametrize("event", ["checkpoint.restored", "optimizer.restored", "scaler.restored"])
def test_a_run_that_goes_on_is_silent(event: str) -> None:
    assert {} == findings(still(600, stream=Stream().event(event)))


def test_an_optimizer_that_had_stepped_before_watch_is_one_of_a_run_that_goes_on() -> None:
    assert {} == findings(still(600, stream=Stream().event("weights.census", state={"float32": 9})))
    assert "stagnation" in findings(still(600, stream=Stream().event("weights.census", state={})))


def test_three_readings_that_move_the_weights_end_it() -> None:
    stream = still(300)
    assert found(still(2, ratio=1e-3, stream=stream)).active
    assert not found(still(1, ratio=1e-3, stream=stream)).active


def test_its_words_tell_a_small_rate_from_small_gradients() -> None:
    finding = found(still(300))
    assert "The model does not learn: steps hardly change the weights" == finding.title
    assert "The median of 32 losses is 4.8 after 200 applied steps; at the beginning it was 4.8." in finding.cause
    assert "a step changes them by 1e-07 of their norm" in finding.cause
    assert "The gradients have a norm of 1." in finding.cause
    assert "Check the learning rate: print" in finding.fix
    assert "About 10,000 times as much would be usual." in finding.fix
    assert "Find out why the gradients are so small" in found(still(300, norm=1e-5)).fix
    finding = found(still(300, optimizer_lr=2e-9))
    assert "The model does not learn: a learning rate of 2e-09 hardly changes the weights" == finding.title
    assert finding.fix.startswith("Raise the learning rate, about 10,000-fold")


def test_it_is_what_came_of_a_clip_before_unscaling() -> None:
    stream = Stream().autocast().good(65536)
    stream.event("usage.clip_before_unscale", caller="train.py:120", max_norm=1.0, scale=65536.0)
    for _ in range(300):
        stream.good(65536, loss=4.8, update_ratio=1e-7)
    (cause,) = explain([("stream", finding) for finding in findings(stream).values()])
    assert "clip-before-unscale" == cause.finding.verdict
    assert ["stagnation"] == [consequence.verdict for consequence in cause.consequences]


def test_it_is_told_once() -> None:
    assert 1 == found(streams_run.stagnation()).times


@pytest.mark.parametrize("rate", [1e-9, 1e-2])
def test_a_real_run_with_a_rate_in_the_wrong_unit_is_named(
    rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)
    torch.manual_seed(2)
    model = torch.nn.GRU(6, 12)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=rate)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(220):
            (model(torch.randn(3, 8, 6))[0] - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (["stagnation"] if rate == 1e-9 else []) == list(seen.findings())


def undone(ratio: float = 1e-3, is_undone: bool = True, stream: Stream | None = None, loss: float = 4.8) -> Stream:
    """A run in which the updates of the first steps are undone."""
    stream = still(40, ratio, stream=stream).event("weights.undone", undone=True)
    if not is_undone:
        still(4, ratio, stream=stream).event("weights.undone", undone=False)
    return still(300, ratio, loss, stream=stream)


def test_updates_that_are_undone_leave_the_weights_as_they_are() -> None:
    finding = found(undone())
    assert "change the weights by 0.001 of their norm, but before the next step the weights are again" in finding.cause
    assert "load_state_dict() or copy_()" in finding.fix
    assert "learning rate" not in finding.fix
    assert finding.evidence["updates_undone"]
    assert (True, 1) == (finding.active, finding.times)


def test_updates_that_are_kept_again_end_it() -> None:
    stream = undone().event("weights.undone", undone=False)
    assert not found(still(3, ratio=1e-3, stream=stream)).active


def test_undone_updates_are_a_reason_in_a_run_that_goes_on_as_well() -> None:
    assert "stagnation" in findings(undone(stream=Stream().event("weights.census", state={"float32": 9})))


def test_undone_updates_are_no_finding_if_they_end_or_the_loss_falls() -> None:
    assert {} == findings(undone(is_undone=False))
    assert {} == findings(undone(loss=3.0))


def test_a_real_run_that_loads_its_weights_after_each_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)
    torch.manual_seed(2)
    model = torch.nn.GRU(6, 12)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(220):
            (model(torch.randn(3, 8, 6))[0] - 1).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.load_state_dict(before)
    assert seen.findings()["stagnation"].evidence["updates_undone"]
