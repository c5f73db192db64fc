"""Blocks, pairs, ratios and deadlines of a comparison; no duration is judged."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from statistics import mean, median, stdev

import pytest
import torch

from bench.agent import comparison
from bench.agent.comparison import Outcome, Sampling, Skipped, compare
from bench.agent.peers import Coverage, Peer
from bench.agent.training import Training
from tests.bench.agent.tiny import TINY, compared


class Counting(Peer):
    name = "counting"
    coverage = Coverage("each step")

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self.gradients_seen = self.steps_seen = 0

    def on_gradients(self) -> None:
        assert all(parameter.grad is not None for parameter in self.training.model.parameters())
        self.gradients_seen += 1

    def on_step_end(self, loss: torch.Tensor) -> None:
        self.steps_seen += 1

    def close(self) -> dict[str, float]:
        return {"gradients": self.gradients_seen, "steps": self.steps_seen}


class CountingOfItsOwn(Counting):
    name = "counting on a model of its own"
    own_model = True
    period = 20


class NotInstalled(Peer):
    name = "not installed"

    def __init__(self, training: Training, folder: Path) -> None:
        raise ModuleNotFoundError("No module named 'wandb'", name="wandb")


class Ordered(Peer):
    """Notes in ORDER when a block of its begins."""

    def attach(self) -> None:
        ORDER.append(self.name)


class First(Ordered):
    name = "first"


class Second(Ordered):
    name = "second"


ORDER: list[str] = []


class Aborting(Peer):
    name = "aborting"

    def on_step_end(self, loss: torch.Tensor) -> None:
        raise ValueError("inf/nan detected, aborting")


@pytest.fixture
def one_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a block's first steps one does not count, however short it is."""
    monkeypatch.setattr(comparison, "SETTLING_SECONDS", 0.0)


@pytest.mark.usefixtures("one_to_settle")
def test_a_peer_is_called_at_the_steps_of_its_own_blocks_only() -> None:
    (found,) = compared([Counting])
    assert isinstance(found, Outcome)
    assert {
        "gradients": 24,
        "steps": 24,
    } == found.self_reported  # 2 + 4 pairs of 3 steps and one to settle
    assert (4, 4) == (len(found.bare), len(found.watched))
    assert min(*found.bare, *found.watched) > 0


@pytest.mark.usefixtures("one_to_settle")
def test_after_the_deadline_the_pairs_measured_so_far_count() -> None:
    (found,) = compare(TINY["bf16"], [Counting], Sampling(pairs=4, steps=3, deadline=time.monotonic()))
    assert isinstance(found, Outcome)
    assert {"gradients": 4, "steps": 4} == found.self_reported
    assert (1, 1) == (len(found.bare), len(found.watched))


@pytest.mark.usefixtures("one_to_settle")
def test_a_periodic_peer_is_measured_over_two_of_its_periods() -> None:
    (found,) = compared([CountingOfItsOwn])
    assert isinstance(found, Outcome)
    assert {"gradients": 66, "steps": 66} == found.self_reported  # 4 blocks of 10 steps count, and 2 to warm up


def test_the_first_steps_of_a_block_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "SETTLING_SECONDS", 0.05)
    training = Training(TINY["bf16"])
    settled = time.perf_counter() + 0.05
    seconds = comparison.seconds_per_step(training, 1)
    assert settled + seconds <= time.perf_counter()
    assert training._steps_done >= 2


def test_missing_and_failing_peers_are_skipped_by_name_and_the_others_measured() -> None:
    missing, aborted, there = compared([NotInstalled, Aborting, Counting])
    assert Skipped("not installed", "wandb is not installed") == missing
    assert Skipped("aborting", "ValueError: inf/nan detected, aborting") == aborted
    assert isinstance(there, Outcome)


def test_each_peer_follows_a_bare_block_or_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.agent.comparison.seconds_per_step", _bare_unless_just_attached)
    ORDER.clear()
    compare(TINY["bf16"], [First, Second], Sampling(pairs=2, steps=1))
    rounds = 2 * ["bare", "first", "bare", "second", "second", "bare", "first", "bare"]
    assert rounds == ORDER


def _bare_unless_just_attached(training: Training, *_: object) -> float:
    if training.peer is None:
        ORDER.append("bare")
    return 1.0


def test_peers_are_measured_equally_often_when_the_deadline_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("bench.agent.comparison.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("bench.agent.comparison.seconds_per_step", lambda *_: 1.0)
    found = compare(TINY["bf16"], [First, Second], Sampling(pairs=9, steps=1, deadline=5))
    assert [4, 4] == [len(outcome.bare) for outcome in found if isinstance(outcome, Outcome)]


def test_the_ratio_is_that_of_a_typical_pair_and_rare_expensive_blocks_show_in_the_means() -> None:
    outcome = Outcome("x", Coverage(), False, [1.0, 1.0, 2.0, 2.0, 4.0], [1.1, 1.1, 2.2, 6.0, 4.4])
    assert pytest.approx(1.1) == outcome.ratio
    assert pytest.approx(1.48) == outcome.mean_ratio
    assert pytest.approx([1.1, 1.1, 1.1, 3.0, 1.1]) == outcome.pairs


def drifting(seed: int, cost: float, pairs: int = 18) -> Outcome:
    """Neighbouring blocks, bare or watched first in turn, on a machine that drifts and has disturbances."""
    chance, pace = random.Random(seed), 0.0
    blocks = []
    for _ in range(2 * pairs):
        pace += chance.gauss(0, 0.03)
        disturbed = chance.expovariate(5) if chance.random() < 0.05 else 0.0
        blocks.append(math.exp(pace + chance.gauss(0, 0.01)) * (1 + disturbed))
    both = [blocks[at : at + 2][:: -1 if at % 4 else 1] for at in range(0, len(blocks), 2)]
    return Outcome("x", Coverage(), False, [bare for bare, _ in both], [watched * cost for _, watched in both])


@pytest.mark.parametrize("cost", [1.0, 1.02, 1.5])
def test_on_a_drifting_machine_the_ratio_is_unbiased_and_varies_less_than_others(cost: float) -> None:
    measured = [drifting(seed, cost) for seed in range(600)]
    ratios = [outcome.ratio / cost for outcome in measured]
    others = (
        [median(outcome.watched) / median(outcome.bare) / cost for outcome in measured],
        [outcome.mean_ratio / cost for outcome in measured],
    )
    assert pytest.approx(1, abs=4 * stdev(ratios) / math.sqrt(600)) == mean(ratios)
    assert 0.011 > stdev(ratios)
    assert 1.5 * stdev(ratios) < min(map(stdev, others))
