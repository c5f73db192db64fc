"""How two ways of training are compared: in alternating blocks of one process, each pair of neighbours by itself.

Python's garbage collector runs in all blocks as it does in users' programs: what a peer gives it to do is its cost.
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

from bench.agent.peers import Gives, Peer
from bench.agent.training import Kind, Training

WARM = 2
"""Pairs of blocks that do not count: caches fill, torch chooses its kernels, a young run is read more often."""

TRIM = 0.2
"""Share of the pairs at either end that the ratio leaves out: docs/decisions/0015-what-the-ratio-is.md."""

CALIBRATION = 10
"""Steps before anything is watched, in which the loss scale finds its place."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: pairs of blocks, steps in a block, and when it has to end (of time.monotonic).

    periods: of a peer that works now and then, how many its watched blocks cover at least.
    """

    pairs: int
    steps: int
    until: float = math.inf
    periods: int = 2

    def watched_steps(self, kind: type[Peer]) -> int:
        """In each watched block of such a peer."""
        covered = self.periods * kind.period if kind.period > 1 else 0
        return max(self.steps, math.ceil(covered / self.pairs))


@dataclass(frozen=True)
class Outcome:
    """Seconds per step of each bare and each watched block, in pairs of neighbours. said: what the peer says itself."""

    name: str
    gives: Gives
    own_model: bool
    bare: list[float]
    watched: list[float]
    said: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Of a typical pair: geometric mean of the pairs' ratios without the fifth at either end.

        Neighbours share the pace of a machine that drifts, and which of them is first takes turns. On 18 pairs of bare
        blocks it wavers by 0.6 % (standard deviation), the ratio of medians by 1.0 %, that of means by 0.8 %.
        """
        logarithms = sorted(math.log(each) for each in self.pairs)
        cut = int(TRIM * len(logarithms))
        return math.exp(mean(logarithms[cut : len(logarithms) - cut]))

    @property
    def mean_ratio(self) -> float:
        """What rare but heavy steps cost is in it in full, and what the machine did meanwhile."""
        return mean(self.watched) / mean(self.bare)

    @property
    def pairs(self) -> list[float]:
        return [watched / bare for bare, watched in zip(self.bare, self.watched, strict=True)]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "own_model": self.own_model,
            "ratio": round(self.ratio, 5),
            "mean_ratio": round(self.mean_ratio, 5),
            "median_pair": round(median(self.pairs), 5),
            "bare_seconds": [round(each, 7) for each in self.bare],
            "watched_seconds": [round(each, 7) for each in self.watched],
            **self.said,
        }


@dataclass(frozen=True)
class Missing:
    """A peer that is left out, and why."""

    name: str
    why: str


def compare(
    kind: Kind,
    peers: Sequence[type[Peer]],
    effort: Effort,
    *,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> list[Outcome | Missing]:
    """Measures these peers on one model, in turn, and those that need one of their own against it.

    done: called after each pair. A peer that cannot run is Missing; the others are measured all the same, and all of
    them equally often. Every other round goes backwards: else one peer's blocks would always follow another's, and
    what that one leaves behind.
    """
    bare = Training(kind, seed)
    bare.calibrate(CALIBRATION)
    with ExitStack() as stack:
        places: list[_Place | Missing] = []
        for each in peers:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            places.append(_place(each, bare, seed, folder, effort))
        for number in range(WARM + effort.pairs):
            going = number == 0 or time.monotonic() < effort.until
            for at in range(len(places))[:: -1 if number % 2 else 1]:
                place = places[at]
                if going and isinstance(place, _Place):
                    places[at] = _measured(place, bare, number, effort)
                done()
        return [place.outcome() if isinstance(place, _Place) else place for place in places]


class _Place:
    """One peer, its model, and what was measured of it."""

    def __init__(self, peer: Peer, steps: int) -> None:
        self.peer = peer
        self.steps = steps
        self.bare: list[float] = []
        self.watched: list[float] = []
        if peer.own:
            peer.training.peer = peer
            peer.attach()

    def block(self) -> float:
        peer = self.peer
        if peer.own:
            return seconds_per_step(peer.training, self.steps)
        peer.attach()
        peer.training.peer = peer
        try:
            return seconds_per_step(peer.training, self.steps)
        finally:
            peer.training.peer = None
            peer.detach()

    def outcome(self) -> Outcome | Missing:
        peer = self.peer
        try:
            said = peer.close()
        except Exception as error:  # noqa: BLE001 - other people's packages
            return Missing(peer.name, _words(error))
        first = min(WARM, len(self.bare) - 1)  # where the time was up at once, one pair has to do
        return Outcome(peer.name, peer.gives, peer.own, self.bare[first:], self.watched[first:], said)


def _place(kind: type[Peer], bare: Training, seed: int, folder: Path, effort: Effort) -> _Place | Missing:
    try:
        training = Training(bare.kind, seed) if kind.own else bare
        if kind.own:
            training.calibrate(CALIBRATION)
        return _Place(kind(training, folder), effort.watched_steps(kind))
    except ImportError as error:
        return Missing(kind.name, f"{error.name or error} is not installed")
    except Exception as error:  # noqa: BLE001 - other people's packages
        return Missing(kind.name, _words(error))


def _measured(place: _Place, bare: Training, number: int, effort: Effort) -> _Place | Missing:
    """One more pair; which of the two comes first takes turns."""
    try:
        watched = place.block() if number % 2 else None
        alone = seconds_per_step(bare, effort.steps)
        watched = place.block() if watched is None else watched
    except Exception as error:  # noqa: BLE001 - other people's packages
        with suppress(Exception):
            place.peer.close()
        return Missing(place.peer.name, _words(error))
    place.bare.append(alone)
    place.watched.append(watched)
    return place


SETTLING = 0.01
"""Seconds, and one step at least, at the beginning of a block that do not count, bare or watched: torch and Python look
their functions up anew after a peer has put itself on or off. A run pays for that once, not in every block."""


def seconds_per_step(training: Training, steps: int) -> float:
    """Mean over a block. The device is waited for at its end only, as programs do."""
    end = time.perf_counter() + SETTLING
    training.step()
    while time.perf_counter() < end:
        training.step()
    _settle(training.kind.device)
    began = time.perf_counter()
    for _ in range(steps):
        training.step()
    _settle(training.kind.device)
    return (time.perf_counter() - began) / steps


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _words(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {said}"
