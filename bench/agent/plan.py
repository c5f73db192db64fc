"""Which peers the benchmark measures, on which trainings, how often and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.agent.ammeter_peers import PRESETS, SETTLED, Ammeter, Settled, SettledDefault
from bench.agent.comparison import WARMUP_PAIRS, Sampling
from bench.agent.other_peers import OTHERS
from bench.agent.peers import Nothing, Peer
from bench.agent.training import LONG_STEPS, SHORT_STEPS, TrainingSpec

LONG_STEP_MS, SHORT_STEP_MS, OTHER_STEP_MS = 105, 2.2, 140
"""Expected durations of a step, by which the phases share the time."""


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        long, short: Trainings with long and with short steps.
        others: Trainings on which the other peers are measured as well.
        repeats: Independent repeats of everything, each with a training of its own.
        pairs, other_pairs, short_pairs: Pairs of blocks in a repeat: of Ammeter's default preset, of any other peer, of
            short steps.
        steps, other_steps, short_steps: Steps in a block: of Ammeter, which writes ten times a second, and of others.
        periods: Periods that the watched blocks of a repeat cover at least, of a peer that works periodically.
        minutes: Limit for all phases together.
    """

    long: Sequence[TrainingSpec] = LONG_STEPS
    short: Sequence[TrainingSpec] = SHORT_STEPS
    others: Sequence[TrainingSpec] = LONG_STEPS
    repeats: int = 5
    pairs: int = 10
    other_pairs: int = 5
    short_pairs: int = 6
    steps: int = 8
    other_steps: int = 5
    short_steps: int = 100
    periods: int = 1
    minutes: float = 32.0


QUICK = Plan(
    long=LONG_STEPS[:1],
    short=SHORT_STEPS[:1],
    others=LONG_STEPS[:1],
    repeats=2,
    pairs=3,
    other_pairs=3,
    short_pairs=3,
    steps=2,
    other_steps=2,
    short_steps=20,
    periods=0,
    minutes=1.5,
)


@dataclass(frozen=True)
class Phase:
    """Peers that are measured together.

    Attributes:
        sampling: Without a deadline; the phase gets one when it begins.
        step_ms: Expected duration of a step.
    """

    spec: TrainingSpec
    peers: Sequence[type[Peer]]
    sampling: Sampling
    step_ms: float
    seed: int = 0
    short: bool = False

    @property
    def pairs(self) -> int:
        return len(self.peers) * (WARMUP_PAIRS + self.sampling.pairs)

    @property
    def expected_ms(self) -> float:
        steps = sum(self.sampling.steps + self.sampling.watched_steps(peer) for peer in self.peers)
        settling = sum(peer.settling_steps for peer in self.peers if issubclass(peer, Settled))
        return ((WARMUP_PAIRS + self.sampling.pairs) * steps + settling) * self.step_ms


def phases_of(plan: Plan, only: Sequence[str]) -> list[Phase]:
    """The phases of a plan: Ammeter first, before other packages start threads in this process.

    The peer that does nothing is measured wherever the default preset is, in turn with it.

    Args:
        only: Words; a peer is measured if its name contains one of them.
    """

    def selected(peers: Sequence[type[Peer]]) -> list[type[Peer]]:
        found = [peer for peer in peers if any(word.strip().lower() in peer.name.lower() for word in only)]
        has_default = not {Ammeter, SettledDefault}.isdisjoint(found)
        return [Nothing, *found] if has_default and Nothing not in found else found

    def sampling(pairs: int, steps: int) -> Sampling:
        return Sampling(pairs, steps, periods=plan.periods)

    default, presets = sampling(plan.pairs, plan.steps), sampling(plan.other_pairs, plan.steps)
    others, short = sampling(plan.other_pairs, plan.other_steps), sampling(plan.short_pairs, plan.short_steps)
    phases, phases_of_others = list[Phase](), list[Phase]()
    for seed in range(plan.repeats):
        for spec in plan.long:
            phases.append(Phase(spec, selected((Nothing, SettledDefault)), default, LONG_STEP_MS, seed))
            phases.append(Phase(spec, selected(SETTLED[1:]), presets, LONG_STEP_MS, seed))
        phases += [
            Phase(spec, selected((Nothing, *PRESETS)), short, SHORT_STEP_MS, seed, short=True) for spec in plan.short
        ]
        phases_of_others += [
            Phase(spec, [peer], others, OTHER_STEP_MS, seed) for spec in plan.others for peer in selected(OTHERS)
        ]
    return [phase for phase in [*phases, *phases_of_others] if phase.peers]
