"""Which trainings the zoo has."""

from __future__ import annotations

from bench.zoo import plan
from bench.zoo.plan import Plan
from bench.zoo.trainer import REGISTRY


def test_every_fault_runs_on_every_network_beside_its_twin() -> None:
    cases = Plan().cases()
    assert len(cases) == len(set(cases))
    assert set(REGISTRY) == {case.what for case in cases if case.fault}
    assert all(case.twin in cases for case in cases if case.fault and not case.frugal)
    tried = {(case.what, case.precision) for case in cases if case.fault}
    assert {(name, precision) for name, fault in REGISTRY.items() for precision in fault.precisions} == tried
    assert {0, 1, 2} == {case.seed for case in cases}
    assert 40 <= len([case for case in cases if not case.fault and case.what])


def test_with_the_default_budget_every_fault_runs_once_on_every_network() -> None:
    tried = [case for case in Plan(seeds=(7, 3)).cases() if case.frugal]
    assert sorted((fault, arch) for fault in REGISTRY for arch in plan.archs()) == sorted(
        (case.what, case.arch) for case in tried
    )
    assert {7} == {case.seed for case in tried}
    compared = [case.steps for case in tried if case.baseline]
    assert (8, {plan.STEPS}) == (len(compared), set(compared))
    assert not [case for case in Plan(frugal=False).cases() if case.frugal]
