"""Samples show changed gradients from float16 without a loss scale, and are not taken for it otherwise."""

from __future__ import annotations

import pytest

from ammeter.probes.own_scaling.half_gradients import MIN_STEPS, HalfGradients
from ammeter.probes.own_scaling.samples import HostSample
from ammeter.probes.own_scaling.steps import Use
from ammeter.torch_hooks import call_site

ON_GRID = [(3 + 2 * at) * 2.0**-24 for at in range(8)]
OFF_GRID = [0.1 / (3 + at) for at in range(8)]


def use(ratio: float = 0.3, produced: list[float] = ON_GRID) -> Use:
    received = HostSample([ratio * value for value in produced])
    return Use([], 0, None, [ratio] * len(produced), None, HostSample(produced), received, call_site.NOWHERE)


def found(uses: list[Use]) -> list[int]:
    half = HalfGradients()
    return [step for step, one in enumerate(uses) if half.found(one)]


def test_several_steps_with_a_change_show_it_once() -> None:
    assert [MIN_STEPS - 1] == found([use()] * 20)
    assert [MIN_STEPS] == found([use(1.0)] * MIN_STEPS + [use()] * 8)
    assert [MIN_STEPS - 1] == found([use(produced=[*OFF_GRID, *ON_GRID])] * 20)


@pytest.mark.parametrize(
    "uses",
    [
        [use(1.0)] * 20,
        [use(1 / 64)] * 20,
        [use(1 / 65536)] * 20,
        [use(produced=OFF_GRID)] * 20,
        [use(produced=[0.0] * 8)] * 20,
        [use()] * 7 + [use(1 / 1024)] + [use()] * 20,
        [use()] * (MIN_STEPS - 1),
    ],
    ids=["unchanged", "scale of 64", "scale", "float32", "zeros", "one divided", "few"],
)
def test_other_steps_show_nothing(uses: list[Use]) -> None:
    assert [] == found(uses)
