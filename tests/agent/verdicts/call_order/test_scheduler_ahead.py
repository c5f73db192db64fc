"""scheduler-ahead fires when a real share of the schedule went to skipped steps, and is over when that has thinned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings, judged
from tests.agent.training import line_of, watching


def ahead(stream: Stream, skipped: int, scheduled: int) -> Stream:
    data = {"scheduler": "LambdaLR", "optimizer": "AdamW of embed.weight", "caller": "loop/train.py:50"}
    counts = {"skipped": skipped, "scheduled": scheduled, "applied": scheduled - skipped, "last": stream.next_step - 1}
    return stream.event("usage.scheduler_ahead", **data, **counts)


def skipping(skips: int, good: int = 20) -> Stream:
    """A scale that was set far too high in the middle of a run comes down; the schedule moves on at each step."""
    stream = warm(good)
    for skip in range(1, skips + 1):
        stream.bad(2.0 ** (40 - skip), last=3, inf=True)
        if skip & (skip - 1) == 0:
            ahead(stream, skip, good + skip)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["scheduler-ahead"]


def test_the_sixteenth_needless_move_opens_it() -> None:
    assert {} == findings(skipping(15))
    finding = found(skipping(16))
    assert ("ticket", 20, 35) == (finding.severity, finding.first_step, finding.opened_step)


def test_its_words_have_the_counts_the_line_and_the_condition() -> None:
    finding = found(skipping(20))
    assert "LambdaLR advances at loop/train.py:50 also after steps of AdamW that were skipped" in finding.cause
    assert "up to step 35, 16 of its 36 moves (44 %) belong to skipped steps." in finding.cause
    assert "Call the scheduler.step() at loop/train.py:50 only after an applied step" in finding.fix
    assert "if scaler.get_scale() >= before: scheduler.step()." in finding.fix
    assert {"moves_for_skipped_steps": 16, "moves": 36, "share": 0.4444, "last_skipped_step": 35} == finding.evidence


def test_as_many_in_a_long_schedule_bend_nothing() -> None:
    assert {} == findings(skipping(20, good=400))
    assert {"scheduler-ahead"} == set(findings(skipping(20, good=300)))


def test_one_backoff_in_two_thousand_steps_is_fine() -> None:
    stream = warm(10)
    for times in (1, 2, 4, 8, 16, 32):
        ahead(stream.good(65536.0), times, 2000 * times)
    assert {} == findings(stream)


def test_it_is_over_when_later_moves_have_thinned_them_out_and_may_come_back() -> None:
    stream = skipping(16)
    for _ in range(604):
        stream.good(65536.0)
    assert found(stream).active
    assert not found(stream.good(65536.0)).active
    finding = found(ahead(stream.good(65536.0), 32, 640))
    assert (True, 2, 20) == (finding.active, finding.times, finding.first_step)


def test_no_cut_changes_when_it_is_over() -> None:
    stream = skipping(16)
    for _ in range(605):
        stream.good(65536.0)
    ahead(stream, 32, 640)
    frames = len(stream.frames)
    for cuts in (range(frames), range(0, frames, 7), [frames - 1]):
        assert judged(stream) == judged(stream, cuts=cuts)


def test_it_begins_where_it_was_rare_for_the_last_time() -> None:
    stream = ahead(warm(10), 1, 10)
    ahead(stream.good(65536.0), 8, 1000)
    ahead(stream.good(65536.0), 64, 1000)
    assert (10, 11) == (found(stream).first_step, found(stream).opened_step)


def test_a_storm_of_skips_has_it_listed_inside() -> None:
    stream = warm(20, scale=8192.0)
    for cycle in range(1, 17):
        stream.bad(32768, last=3, inf=True).bad(16384, last=1, inf=True)
        if cycle & (cycle - 1) == 0:
            ahead(stream, 2 * cycle, 20 + 3 * cycle)
        stream.good(8192, norm=5, growth_tracker=0, full=True)
    found = findings(stream)
    assert {"overflow-storm", "scheduler-ahead"} == set(found)
    (cause,) = explain([("stream", finding) for finding in found.values()])
    assert "overflow-storm" == cause.finding.verdict


def train(model: Any, optimizer: Any, scaler: Any, schedule: Any, gated: bool) -> None:
    for step in range(50):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(8, 6)).square().mean()
        before = scaler.get_scale()
        scaler.scale(loss.float() * (float("inf") if 10 <= step < 30 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        if not gated or scaler.get_scale() >= before:
            schedule.step()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("gated", [False, True])
def test_a_real_schedule_is_found_unless_it_waits_for_the_step(gated: bool, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        train(model, optimizer, scaler, schedule, gated)
    found = seen.findings()
    assert (not gated) == ("scheduler-ahead" in found)
    if not gated:
        finding = found["scheduler-ahead"]
        assert "StepLR advances" in finding.cause
        assert "16 of its 26 moves" in finding.cause
        assert (finding.caller or "").endswith(line_of(train, "schedule.step"))
