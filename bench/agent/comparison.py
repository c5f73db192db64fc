"""Compares bare and watched training in alternating blocks of one process, pair by pair.

Python's garbage collector runs in all blocks, as it does in users' programs: a peer pays for the garbage it makes.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from bench.agent.peers import Coverage, Peer
from bench.agent.training import Training, TrainingSpec

WARMUP_PAIRS = 2
"""Pairs that do not count: caches fill, torch chooses its kernels, and Ammeter reads a young run more often."""

TRIMMED_SHARE = 0.2
"""Share of the pairs at either end that the ratio leaves out: docs/decisions/0015-what-the-ratio-is.md."""

CALIBRATION_STEPS = 10
"""Unwatched steps at the beginning, in which the loss scale settles."""

SETTLING_SECONDS = 0.01
"""Beginning of a block, at least one step, that does not count: torch and Python resolve their functions again after a
peer attaches or detaches. A real run pays for that once rather than in every block."""


@dataclass(frozen=True)
class Sampling:
    """How much is measured.

    Attributes:
        pairs: Pairs of blocks for each peer.
        steps: Steps in a block.
        deadline: End of the measurement, by time.monotonic().
        periods: Periods that the watched blocks of a periodic peer cover at least.
        clock: Returns seconds; time.process_time hardly depends on the machine's other load.
    """

    pairs: int
    steps: int
    deadline: float = math.inf
    periods: int = 2
    clock: Callable[[], float] = time.perf_counter

    def watched_steps(self, peer: type[Peer]) -> int:
        """Steps in each watched block of this peer."""
        covered = self.periods * peer.period if peer.period > 1 else 0
        return max(self.steps, math.ceil(covered / self.pairs))


@dataclass(frozen=True)
class Outcome:
    """Seconds per step of each bare and each watched block, in pairs of neighbours.

    Attributes:
        own_model: Whether the peer had a model of its own.
        self_reported: Figures that the peer reports about itself.
    """

    name: str
    coverage: Coverage
    own_model: bool
    bare: list[float]
    watched: list[float]
    self_reported: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Geometric mean of the pairs' ratios, without the lowest and the highest fifth.

        Neighbours share the speed of a machine that drifts, and the order within a pair alternates. On 18 pairs of bare
        blocks its standard deviation is 0.6 %; that of the ratio of medians is 1.0 %, of the ratio of means 0.8 %.
        """
        logarithms = sorted(math.log(ratio) for ratio in self.pairs)
        cut = int(TRIMMED_SHARE * len(logarithms))
        return math.exp(mean(logarithms[cut : len(logarithms) - cut]))

    @property
    def mean_ratio(self) -> float:
        """Ratio of the means: includes rare expensive steps in full, and all disturbances by the machine."""
        return mean(self.watched) / mean(self.bare)

    @property
    def pairs(self) -> list[float]:
        return [watched / bare for bare, watched in zip(self.bare, self.watched, strict=True)]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "own_model": self.own_model,
            "pooled_ratio": round(self.ratio, 5),
            "mean_ratio": round(self.mean_ratio, 5),
            "median_pair": round(median(self.pairs), 5),
            "bare_seconds": [round(seconds, 7) for seconds in self.bare],
            "watched_seconds": [round(seconds, 7) for seconds in self.watched],
            **self.self_reported,
        }


@dataclass(frozen=True)
class Skipped:
    """A peer that was not measured, and the reason."""

    name: str
    reason: str


def compare(
    spec: TrainingSpec,
    peers: Sequence[type[Peer]],
    sampling: Sampling,
    *,
    seed: int = 0,
    on_pair: Callable[[], None] = lambda: None,
    bare: Training | None = None,
) -> list[Outcome | Skipped]:
    """Measures these peers in turn, on one model, or on models of their own where they cannot be detached.

    All peers are measured equally often. Every second round runs in reverse order: otherwise the blocks of one peer
    would always follow those of the same other peer.

    Args:
        on_pair: Called after each pair.
        bare: A training of this spec to measure on; a new one if None.

    Returns:
        One entry for each peer; Skipped for a peer that cannot run.
    """
    bare = Training(spec, seed) if bare is None else bare
    bare.calibrate(CALIBRATION_STEPS)
    with ExitStack() as stack:
        subjects: list[_Subject | Skipped] = []
        for peer in peers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            subjects.append(_subject(peer, bare, seed, folder, sampling))
        for number in range(WARMUP_PAIRS + sampling.pairs):
            in_time = number == 0 or time.monotonic() < sampling.deadline
            for index in range(len(subjects))[:: -1 if number % 2 else 1]:
                subject = subjects[index]
                if in_time and isinstance(subject, _Subject):
                    subjects[index] = _with_one_more_pair(subject, bare, number, sampling)
                on_pair()
        return [subject.outcome() if isinstance(subject, _Subject) else subject for subject in subjects]


class _Subject:
    """A peer, its training and its measurements so far."""

    def __init__(self, peer: Peer, steps: int, clock: Callable[[], float]) -> None:
        self.peer = peer
        self.steps = steps
        self.clock = clock
        self.bare: list[float] = []
        self.watched: list[float] = []
        if peer.own_model:
            peer.training.peer = peer
            peer.attach()

    def watched_block(self) -> float:
        peer = self.peer
        if peer.own_model:
            return seconds_per_step(peer.training, self.steps, self.clock)
        peer.attach()
        peer.training.peer = peer
        try:
            return seconds_per_step(peer.training, self.steps, self.clock)
        finally:
            peer.training.peer = None
            peer.detach()

    def outcome(self) -> Outcome | Skipped:
        peer = self.peer
        try:
            reported = peer.close()
        except Exception as error:  # noqa: BLE001 - other people's packages
            return Skipped(peer.name, _message(error))
        first = min(WARMUP_PAIRS, len(self.bare) - 1)  # one pair counts where the deadline passed at once
        return Outcome(peer.name, peer.coverage, peer.own_model, self.bare[first:], self.watched[first:], reported)


def _subject(peer: type[Peer], bare: Training, seed: int, folder: Path, sampling: Sampling) -> _Subject | Skipped:
    try:
        training = Training(bare.spec, seed) if peer.own_model else bare
        if peer.own_model:
            training.calibrate(CALIBRATION_STEPS)
        return _Subject(peer(training, folder), sampling.watched_steps(peer), sampling.clock)
    except ImportError as error:
        return Skipped(peer.name, f"{error.name or error} is not installed")
    except Exception as error:  # noqa: BLE001 - other people's packages
        return Skipped(peer.name, _message(error))


def _with_one_more_pair(subject: _Subject, bare: Training, number: int, sampling: Sampling) -> _Subject | Skipped:
    """Measures one more pair; the order within the pair alternates."""
    try:
        watched = subject.watched_block() if number % 2 else None
        alone = seconds_per_step(bare, sampling.steps, sampling.clock)
        watched = subject.watched_block() if watched is None else watched
    except Exception as error:  # noqa: BLE001 - other people's packages
        with suppress(Exception):
            subject.peer.close()
        return Skipped(subject.peer.name, _message(error))
    subject.bare.append(alone)
    subject.watched.append(watched)
    return subject


def seconds_per_step(training: Training, steps: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Mean over a block, which synchronises with the device only at its end, as programs do."""
    end = time.perf_counter() + SETTLING_SECONDS
    training.step()
    while time.perf_counter() < end:
        training.step()
    _synchronize(training.spec.device)
    began = clock()
    for _ in range(steps):
        training.step()
    _synchronize(training.spec.device)
    return (clock() - began) / steps


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}"
