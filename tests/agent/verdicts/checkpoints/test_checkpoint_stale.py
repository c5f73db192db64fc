"""checkpoint-stale fires by the clock of the steps, sooner the larger the job, and a checkpoint ends it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent import streams_run
from tests.agent.stream_builder import SECOND, Stream
from tests.agent.stream_judgement import findings
from tests.agent.training import stream as journal_of
from tests.agent.training import watching

HOUR = 3600.0


def saved(stream: Stream, seconds: float = 4.0) -> Stream:
    contents = {"weights": {"float32": 99}, "optimizer": True, "whole": True}
    return stream.event("checkpoint.saved", path="out/run.pt", seconds=seconds, contents=contents, missing=[])


def hours(count: float, stream: Stream) -> Stream:
    """Steps of a minute."""
    for _ in range(round(60 * count)):
        stream.good(seconds=60.0)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["checkpoint-stale"]


def test_four_times_the_best_interval_opens_it_at_the_step_of_the_last_checkpoint() -> None:
    best = math.sqrt(2 * 4.0 * 168 * HOUR)
    minutes = math.ceil(4 * best / 60)
    stream = saved(hours(1, Stream()))
    assert {} == findings(hours((minutes - 1) / 60, stream))
    finding = found(hours(1 / 60, stream))
    assert ("ticket", 59, 59 + minutes) == (finding.severity, finding.first_step, finding.opened_step)
    assert finding.evidence["best_interval_seconds"] == pytest.approx(best, abs=0.1)


def test_without_any_checkpoint_a_minute_is_assumed_for_one() -> None:
    limit = 4 * math.sqrt(2 * 60 * 168 * HOUR) / HOUR
    stream = hours(limit - 0.1, Stream())
    assert {} == findings(stream)
    finding = found(hours(0.2, stream))
    assert 0 == finding.first_step
    assert "No checkpoint was seen for 9.5 hours" in finding.cause
    assert "None was seen in this run." in finding.cause


def test_a_job_of_a_thousand_gpus_has_less_time() -> None:
    stream = hours(2.2, saved(Stream(world_size=1024).good(), seconds=60.0))
    finding = found(stream)
    assert "one failure every 7.8 hours, as is assumed for 1024 processes" in finding.cause
    assert "every 31 minutes" in finding.fix
    assert {} == findings(hours(2.2, saved(Stream(world_size=8).good(), seconds=60.0)))


def test_less_than_an_hour_is_nobodys_alarm() -> None:
    assert {} == findings(hours(0.9, saved(Stream(world_size=16384).good())))


def test_only_the_first_rank_is_expected_to_save() -> None:
    stream = hours(20, Stream(world_size=2))
    assert "checkpoint-stale" in findings(stream)
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], rank=1)
    assert {} == findings(stream)


def test_saving_now_and_then_keeps_it_silent() -> None:
    stream = Stream()
    for _ in range(10):
        saved(hours(1, stream))
    assert {} == findings(stream)


def test_the_next_checkpoint_ends_it() -> None:
    stream = hours(5, saved(hours(1, Stream())))
    assert found(stream).active
    assert not found(saved(stream)).active


def test_it_is_told_again_with_the_new_time_when_that_has_doubled() -> None:
    stream = hours(3, saved(hours(1, Stream())))
    assert "No checkpoint for more than 2.5 hours, since step 59" == found(stream).title
    assert "No checkpoint for more than 4.9 hours, since step 59" == found(hours(2, stream)).title


def test_its_words_say_how_often_to_save() -> None:
    finding = found(streams_run.checkpoint_stale())
    assert "The last one was saved at step 9 in out." in finding.cause
    assert "one failure every 7.0 days, as is assumed for one process" in finding.cause
    assert "Save every 37 minutes, by the clock" in finding.fix
    assert "Check why no save followed that of step 9: a full disk" in finding.fix


def test_of_a_real_run_the_time_of_the_save_counts(tmp_path: Path) -> None:
    model = torch.nn.Conv1d(2, 3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(10):
            model(torch.randn(4, 2, 9)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 4:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.pt")
    stream = Stream()
    stream.schema, stream.frames = journal_of(seen.run, tmp_path)[0].schema, journal_of(seen.run, tmp_path)[1]
    stream.frames.pop()  # its goodbye
    stream.next_step, stream.now = 10, stream.frames[-1].time  # type: ignore[union-attr]
    assert {} == findings(stream)
    stream.now += 2 * 3600 * SECOND
    finding = found(stream.good())
    assert 5 == finding.first_step
    assert finding.evidence["last_checkpoint"].endswith("/run.pt")
