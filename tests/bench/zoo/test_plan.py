"""Which trainings the zoo has."""

from __future__ import annotations

from bench.zoo import plan
from bench.zoo.plan import Plan
from bench.zoo.trainer import REGISTRY


def test_every_fault_runs_on_every_network_beside_its_twin() -> None:
    cases = Plan().cases()
    assert len(cases) == len(set(cases))
    assert set(REGISTRY) == {each.what for each in cases if each.fault}
    assert all(each.twin in cases for each in cases if each.fault and not each.frugal)
    tried = {(each.what, each.precision) for each in cases if each.fault}
    assert {(name, each) for name, fault in REGISTRY.items() for each in fault.precisions} == tried
    assert {0, 1, 2} == {each.seed for each in cases}
    assert 40 <= len([each for each in cases if not each.fault and each.what])


def test_with_the_default_budget_every_fault_runs_once_on_every_network() -> None:
    tried = [each for each in Plan(seeds=(7, 3)).cases() if each.frugal]
    assert sorted((fault, arch) for fault in REGISTRY for arch in plan.archs()) == sorted(
        (each.what, each.arch) for each in tried
    )
    assert {7} == {each.seed for each in tried}
    compared = [each.steps for each in tried if each.baseline]
    assert (8, {plan.STEPS}) == (len(compared), set(compared))
    assert not [each for each in Plan(frugal=False).cases() if each.frugal]
