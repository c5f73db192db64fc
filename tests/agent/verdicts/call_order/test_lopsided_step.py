"""lopsided-step fires where one of several optimizers is skipped often, and not where that happens now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ammeter.verdicts.causality import explain
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.training import Model, watching

NAMES = {"skipped": ["AdamW of head.weight"], "applied": ["AdamW of embed.weight"]}


def lopsided(*steps: int, since: int = 0) -> Stream:
    """A run with lopsided steps at these numbers, told at powers of two. since: such steps in its calibration."""
    stream = Stream().autocast()
    for step in range(max(steps) + 1):
        if step not in steps:
            stream.good(32768)
            continue
        stream.good(65536, skipped=1, found_inf=1)
        times = since + steps.index(step) + 1
        if times & (times - 1) == 0:
            stream.event("usage.lopsided_step", **NAMES, scale=65536.0, times=times)
    return stream


def test_three_more_in_a_hundred_steps_each_are_a_finding_with_names_and_numbers() -> None:
    finding = findings(lopsided(100, 150, 200, 250))["lopsided-step"]
    assert ("ticket", 100, 250) == (finding.severity, finding.first_step, finding.opened_step)
    assert "In 3 of the 150 steps after step 100 (2.0 %)" in finding.cause
    assert (
        "At step 250, AdamW of head.weight was skipped at a scale of 65536 (2^16) and AdamW of embed.weight stepped"
        in (finding.cause)
    )
    assert "if norm.isfinite(): scaler.step() for each" in finding.fix
    assert "GradScaler(init_scale=32768)" in finding.fix
    assert 0.02 == finding.evidence["share"]


def test_three_are_not_enough_and_four_that_are_rare_are_not_either() -> None:
    assert "lopsided-step" not in findings(lopsided(100, 150, 200))
    assert "lopsided-step" not in findings(lopsided(100, 500, 900, 1300))


def test_one_episode_is_none() -> None:
    assert "lopsided-step" not in findings(lopsided(*range(100, 108)))


def test_what_was_rare_at_first_is_counted_from_where_it_became_frequent() -> None:
    finding = findings(lopsided(100, 600, 1100, 1600, *range(1620, 1720, 20)))["lopsided-step"]
    assert (1600, 1680) == (finding.first_step, finding.opened_step)
    assert "In 4 of the 80 steps after step 1600 (5.0 %)" in finding.cause


def test_what_came_before_the_first_event_does_not_count() -> None:
    assert "lopsided-step" not in findings(lopsided(100, since=7))
    assert "lopsided-step" in findings(lopsided(*range(100, 300, 20), since=7))


def test_a_storm_that_skips_one_of_two_optimizers_is_the_cause() -> None:
    stream = lopsided(*range(60, 200, 10))
    storm = findings(stream)["overflow-storm"]
    assert [["lopsided-step"]] == [
        [more.verdict for more in cause.consequences]
        for cause in explain([("a", finding) for finding in findings(stream).values()])
    ]
    assert storm.first_step == findings(stream)["lopsided-step"].first_step


def test_it_is_told_once() -> None:
    assert 1 == findings(lopsided(*range(100, 1000, 20)))["lopsided-step"].times


def train(tmp_path: Path, bad: set[int]) -> Any:
    first, second, scaler = Model(), Model(), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizers = [torch.optim.SGD(first.parameters(), lr=1e-4), torch.optim.AdamW(second.parameters(), lr=1e-4)]
    with watching(tmp_path, [first, second], optimizers, scaler) as seen:
        for step in range(40):
            for optimizer in optimizers:
                optimizer.zero_grad()
            x = torch.randn(8, 12)
            scaler.scale(first(x).square().mean()).backward()
            scaler.scale(second(x).square().mean() * (float("inf") if step in bad else 1)).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
    return seen


def test_a_program_whose_second_optimizer_is_skipped_often_is_found(tmp_path: Path) -> None:
    finding = train(tmp_path / "often", {5, 13, 21, 29}).findings()["lopsided-step"]
    assert (5, 29) == (finding.first_step, finding.opened_step)
    assert ["AdamW of model1.first.weight"] == finding.evidence["skipped"]
    assert ["SGD of model0.first.weight"] == finding.evidence["applied"]
    assert "lopsided-step" not in train(tmp_path / "once", {5}).findings()
