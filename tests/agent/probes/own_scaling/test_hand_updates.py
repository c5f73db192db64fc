"""Weights that a program updates itself: a step on scaled gradients is found by how far the weights move."""

from __future__ import annotations

import math
import re
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter import journal
from ammeter.probes.own_scaling.hand_updates import MIN_USUAL_STEPS, Open, Update, Usual
from ammeter.probes.own_scaling.samples import HostSample
from ammeter.torch_hooks import call_site
from ammeter.wire.frames import Event
from tests import ranks
from tests.agent.probes.own_scaling.hand_loops import (
    FAULTY,
    HEALTHY,
    RATE,
    SCALE,
    STEPS,
    Accumulating,
    AtOnce,
    AtTheRate,
    Due,
    Growing,
    InTheFactor,
    InTheFactorThenReset,
    Loop,
    OnTheRawLoss,
    ThroughZeroGrad,
    WithHooks,
    trained,
)
from tests.agent.training import line_of, stream

COURSES: dict[str, Due] = {
    "once": lambda step: step == FAULTY,
    "every fifth": lambda step: step % 5 == 4,
    "late": lambda step: step >= FAULTY,
}


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", [Loop, AtOnce, ThroughZeroGrad, Growing, Accumulating])
def test_an_update_with_scaled_gradients_is_told(kind: Any, own: bool, course: str, tmp_path: Path) -> None:
    loop = kind(COURSES[course], own=own)
    first = next(step for step in range(STEPS) if loop.due(step))
    finding = trained(loop, tmp_path).findings()["gradients-not-unscaled"]
    assert first == finding.first_step
    assert finding.evidence["scale"] == SCALE if kind is not Growing else loop.scale >= finding.evidence["scale"]


def test_the_finding_tells_both_factors_and_the_line_of_backward(tmp_path: Path) -> None:
    seen = trained(Loop(COURSES["once"]), tmp_path)
    finding = seen.findings()["gradients-not-unscaled"]
    assert "Weights are updated with scaled gradients" == finding.title
    assert (
        f"The weights of SGD were updated with gradients that are still multiplied by the loss scale of 1024 (2^10)."
        f" They changed by 0.0001 times the gradients that backward() at {line_of(Loop.backward, '# the scaled loss')}"
        " had left; in the steps before, by 9.77e-08 times, which is that number divided by the scale."
    ) == re.sub(r"\S*/", "", finding.cause)
    assert pytest.approx(RATE, rel=0.01) == finding.evidence["factor"]
    assert pytest.approx(RATE / SCALE, rel=0.01) == finding.evidence["usual"]
    assert finding.fix.startswith("Call scaler.unscale_() for SGD before each update of the weights")
    assert 1 == len(seen.events("usage.gradients_not_unscaled"))


def test_a_program_with_its_own_scale_is_told_to_divide(tmp_path: Path) -> None:
    finding = trained(Loop(COURSES["once"], own=True), tmp_path).findings()["gradients-not-unscaled"]
    assert finding.fix.startswith("Divide the gradients by the scale before each update of the weights")


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_update_of_the_programs_own_is_silent(kind: Any, own: bool, tmp_path: Path) -> None:
    seen = trained(kind(own=own), tmp_path)
    assert [] == seen.events("usage.gradients_not_unscaled")
    assert [] == seen.events("probe.failed")


@pytest.mark.parametrize("kind", [InTheFactor, Loop, AtTheRate])
def test_recorded_losses_do_not_contain_a_scale_whose_division_cannot_be_observed(kind: Any, tmp_path: Path) -> None:
    first = trained(kind(lambda step: True, own=True), tmp_path, steps=4)
    same = trained(Loop(), tmp_path, steps=4)
    own, scaler = (stream(seen.run, tmp_path)[0].scalar("loss")[0] for seen in (first, same))
    assert scaler == pytest.approx(own)
    assert 10 > own > 0


def test_an_update_with_the_learning_rate_needs_no_other_step_to_be_told(tmp_path: Path) -> None:
    finding = trained(AtTheRate(lambda step: True), tmp_path, steps=4).findings()["gradients-not-unscaled"]
    assert 0 == finding.first_step
    assert {"optimizer": "SGD", "scale": SCALE, "factor": RATE} == finding.evidence
    line = line_of(Loop.backward, "# the scaled loss")
    assert re.sub(r"\S*/", "", finding.cause).endswith(
        f"They changed by 0.0001 times the gradients that backward() at {line} had left, which is the learning rate of"
        " the optimizer, not divided by the scale."
    )


@pytest.mark.parametrize("kind", [ThroughZeroGrad, InTheFactorThenReset, WithHooks, OnTheRawLoss])
def test_an_update_is_not_told_at_once_if_something_else_may_divide(kind: Any, tmp_path: Path) -> None:
    seen = trained(kind(lambda step: True), tmp_path)
    assert [] == seen.events("usage.gradients_not_unscaled")


def test_a_learning_rate_of_one_over_the_scale_is_no_mistake(tmp_path: Path) -> None:
    loop = InTheFactorThenReset()
    loop.rate = lambda step: 1 / SCALE  # type: ignore[method-assign]
    loop.optimizer.param_groups[0]["lr"] = 0.001
    assert [] == trained(loop, tmp_path).events("usage.gradients_not_unscaled")


def test_too_few_steps_show_no_usual_factor(tmp_path: Path) -> None:
    loop = Loop(lambda step: step == MIN_USUAL_STEPS - 1)
    assert [] == trained(loop, tmp_path, steps=MIN_USUAL_STEPS).events("usage.gradients_not_unscaled")


@pytest.mark.parametrize("own", [False, True])
def test_steps_that_begin_with_a_mistake_do_not_hide_later_ones(own: bool, tmp_path: Path) -> None:
    seen = trained(Loop(lambda step: step < 4 or step == FAULTY, own=own), tmp_path)
    assert "gradients-not-unscaled" in seen.findings()


def sample(*values: float) -> HostSample:
    return HostSample(list(values))


def moved(*factors: float) -> Update:
    """An update of weights of zero by these multiples of gradients of one."""
    count = len(factors)
    after = sample(*(-factor for factor in factors))
    return update_of([1.0] * count, [0.0] * count, after)


def update_of(gradients: list[float], before: list[float], after: HostSample) -> Update:
    was = Open(sample(*gradients), [], sample(*before), None, call_site.NOWHERE)
    return Update(weakref.ref(SGD), was, after, math.nan)


SGD = torch.optim.SGD([torch.zeros(1)], lr=0.1)


@pytest.mark.parametrize(("others", "is_told"), [(1, True), (3, False)])
def test_most_elements_must_have_the_factor(others: int, is_told: bool) -> None:
    usual = Usual()
    for _ in range(MIN_USUAL_STEPS):
        assert usual.judge(moved(*[RATE / SCALE] * 8), SCALE) is None
    found = usual.judge(moved(*[RATE] * (8 - others), *[2 * RATE] * others), SCALE)
    assert is_told == (found is not None)


def test_a_weight_that_rounding_moves_has_no_factor() -> None:
    known, rounded = sample(1 - 2**-18), sample(1 - 2**-22)
    for after, factor in ((known, 2**-18), (rounded, math.nan)):
        assert pytest.approx([factor], nan_ok=True) == update_of([1.0], [1.0], after).factors()


RANKS = """
import os, sys
import torch
import torch.distributed as dist
import ammeter

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ammeter.watch(model, optimizer, dir=sys.argv[1], budget=1.0)
draw = torch.Generator().manual_seed(dist.get_rank())
for step in range(16):
    for parameter in model.parameters():
        parameter.grad = None
    (model(torch.randn(8, 8, generator=draw)).square().mean() * 1024.0).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2
        if step != 11 or sys.argv[2] == "twin":
            parameter.grad /= 1024.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
"""


@pytest.mark.parametrize("kind", ["fault", "twin"])
def test_gradients_that_the_program_averages_over_ranks_are_compared_as_they_are_then(
    kind: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    ranks.run([sys.executable, script, tmp_path / "journal", kind], 2, timeout=120, env=ranks.without_settings())
    (run,) = (tmp_path / "journal").iterdir()
    assert ([11, 11] if kind == "fault" else []) == [
        entry.frame.step
        for path in journal.streams(run)
        for entry in journal.read(path)
        if isinstance(entry.frame, Event) and entry.frame.name == "usage.gradients_not_unscaled"
    ]


def test_watching_changes_no_bit_of_the_weights(tmp_path: Path) -> None:
    watched, alone = Loop(COURSES["once"]), Loop(COURSES["once"])
    torch.manual_seed(1)
    trained(watched, tmp_path)
    torch.manual_seed(1)
    for step in range(STEPS):
        alone.step(step)
    assert all(map(torch.equal, watched.parameters, alone.parameters))
