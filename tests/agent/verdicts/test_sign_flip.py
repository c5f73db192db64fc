"""sign-flip fires when gradients have begun to point back at every step, and not for noise or a bounce that ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ammeter import schedule
from ammeter.verdicts.finding import Finding
from ammeter.verdicts.sign_flip import BEFORE, CALM, ENOUGH
from tests.agent import streams_run
from tests.agent.streams import Stream, findings
from tests.agent.training import watching


def turning(cosines: Sequence[float], losses: Sequence[float] = (2.0,)) -> Stream:
    """Readings with these cosines; the last loss goes on."""
    stream = Stream()
    for number, cosine in enumerate(cosines):
        stats = {"grad.agreement": [0.1, cosine, 0.1, 0.1, 0.1, 0.1]}
        stream.good(grad_agreement=cosine, loss=losses[min(number, len(losses) - 1)], stats=stats)
        stream.good(loss=9.0)  # a step that was not read
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["sign-flip"]


def test_the_thirty_second_reading_in_a_row_opens_it_at_the_step_of_the_first() -> None:
    before = [0.3] * BEFORE
    assert {} == findings(turning([*before, *[-0.5] * (ENOUGH - 1)]))
    finding = found(turning([*before, *[-0.5] * ENOUGH]))
    expected = ("ticket", 2 * BEFORE, 2 * (BEFORE + ENOUGH - 1))
    assert expected == (finding.severity, finding.first_step, finding.opened_step)


def test_a_single_reading_that_agrees_begins_it_anew() -> None:
    once = [-0.5] * (ENOUGH - 1)
    assert {} == findings(turning([0.3] * BEFORE + once + [0.0] + once))


def test_a_run_that_went_back_and_forth_all_along_is_silent() -> None:
    assert {} == findings(turning([-0.5] * 200))
    assert {} == findings(turning([0.3, -0.5, -0.5] * 20 + [-0.5] * 100))


def test_too_few_readings_before_say_nothing_of_how_it_was() -> None:
    assert {} == findings(turning([0.3] * (BEFORE - 1) + [-0.5] * 100))


def test_a_loss_that_still_falls_keeps_it_silent_until_it_does_no_more() -> None:
    falling = [5 - step / 50 for step in range(BEFORE + ENOUGH)]
    cosines = [0.3] * BEFORE + [-0.5] * ENOUGH
    assert {} == findings(turning(cosines, falling))
    stands = turning([*cosines, *[-0.5] * 60], [*falling, *[4.6] * 60])
    assert "The loss was 3.89 before and is 4.6." in found(stands).cause


def test_eight_readings_that_do_not_point_back_end_it() -> None:
    flips = [0.3] * BEFORE + [-0.5] * ENOUGH
    assert found(turning([*flips, *[0.1] * (CALM - 1)])).active
    assert not found(turning([*flips, *[0.1] * CALM])).active


def test_its_words_name_the_tensor_the_cosines_and_what_to_try() -> None:
    finding = found(turning([0.3] * BEFORE + [-0.5] * ENOUGH))
    assert "The gradients turn round from step to step" == finding.title
    assert "most of all in blocks.0.fc.weight: their cosine is -0.50 where it was 0.30" in finding.cause
    assert "Look at what changed at step 64: the learning rate" in finding.fix
    assert "run blocks.0.fc in float32" in finding.fix
    assert "blocks.0.fc.weight" == finding.tensor


def test_it_is_told_once() -> None:
    assert 1 == found(streams_run.sign_flip()).times


@pytest.mark.parametrize("twice", [True, False])
def test_a_real_run_whose_gradients_are_fed_back_twice_is_named(
    twice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(10, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = torch.randn(4000, 10)
    target = torch.sin(data.sum(1, keepdim=True))
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(160):
            if step == 80 and twice:
                feed_back_twice(model)
            batch = torch.randint(4000, (256,))
            torch.nn.functional.mse_loss(model(data[batch]), target[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    told = seen.findings()
    assert (["sign-flip"] if twice else []) == list(told)
    if twice:
        assert 80 <= told["sign-flip"].first_step <= 100


def feed_back_twice(model: torch.nn.Module) -> None:
    left: dict[int, torch.Tensor] = {}

    def compressed(number: int, gradient: torch.Tensor) -> torch.Tensor:
        due = gradient + left.get(number, torch.zeros(()))
        left[number] = -due
        return 2 * due

    for number, weight in enumerate(model.parameters()):
        weight.register_hook(lambda gradient, number=number: compressed(number, gradient))  # type: ignore[no-untyped-call]
