"""Which peers a plan measures, in which order and how often."""

from __future__ import annotations

import pytest

from bench.agent import other_peers, plan
from bench.agent.ammeter_peers import PRESETS, SETTLED, Ammeter, SettledDefault
from bench.agent.other_peers import OTHERS
from bench.agent.peers import Nothing
from bench.agent.plan import phases_of


def test_ammeter_is_measured_before_other_packages_start_threads() -> None:
    phases = [phase.peers for phase in phases_of(plan.Plan(), [""])]
    others = 5 * 2 * [[peer] for peer in OTHERS]
    assert others == phases[-len(others) :]
    assert {Nothing, *PRESETS, *SETTLED} == {peer for phase in phases[: -len(others)] for peer in phase}


def test_every_peer_is_measured_in_each_repeat_with_a_training_of_its_own() -> None:
    phases = phases_of(plan.Plan(), [""])
    for peer in (SettledDefault, *SETTLED[1:], *OTHERS):
        assert 2 * [0, 1, 2, 3, 4] == [
            phase.seed for spec in plan.Plan().long for phase in phases if phase.spec == spec and peer in phase.peers
        ]


@pytest.mark.parametrize("words", [[""], ["ammeter"], ["ammeter", "nothing"]])
def test_the_idle_peer_is_measured_first_and_as_often_as_the_default_preset(words: list[str]) -> None:
    default = {Ammeter, SettledDefault}
    with_default = [phase for phase in phases_of(plan.Plan(), words) if default & set(phase.peers)]
    with_nothing = [phase for phase in phases_of(plan.Plan(), words) if Nothing in phase.peers]
    assert with_default == with_nothing
    assert [2 * 5 * [Nothing], 3 * 5 * [Nothing]] == [
        [phase.peers[0] for phase in with_nothing if phase.short is short] for short in (False, True)
    ]


def test_a_periodic_peer_gets_time_for_its_periods() -> None:
    phases = {phase.peers[0]: phase for phase in phases_of(plan.Plan(), ["wandb"])}
    each_step, now_and_then = phases[other_peers.Wandb], phases[other_peers.Wandb100]
    assert 100 <= now_and_then.sampling.watched_steps(other_peers.Wandb100) * now_and_then.sampling.pairs
    assert now_and_then.expected_ms > each_step.expected_ms
