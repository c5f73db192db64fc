"""sign-flip fires when gradients have begun to point back at every step, and not for noise or a bounce that ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ammeter.recording.schedule import budget as schedule
from ammeter.verdicts.dynamics.sign_flip import FLIP_COSINE, MIN_READINGS, MIN_SUM, REFERENCE_READINGS
from ammeter.verdicts.framework.finding import Finding
from tests.agent import streams_run
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
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


WELL = [0.3] * REFERENCE_READINGS


def test_the_thirty_second_reading_opens_it_at_the_step_of_the_first() -> None:
    assert {} == findings(turning([*WELL, *[-0.5] * (MIN_READINGS - 1)]))
    finding = found(turning([*WELL, *[-0.5] * MIN_READINGS]))
    expected = ("ticket", 2 * REFERENCE_READINGS, 2 * (REFERENCE_READINGS + MIN_READINGS - 1))
    assert expected == (finding.severity, finding.first_step, finding.opened_step)


def test_readings_that_scatter_may_agree_now_and_then() -> None:
    finding = found(turning([*WELL, *[-0.8, -0.7, 0.1, -0.6] * 12]))
    assert pytest.approx(-0.5, abs=0.05) == finding.evidence["cosine"]
    assert 2 * REFERENCE_READINGS == finding.first_step


def test_what_points_back_less_than_half_as_much_as_steps_that_take_each_other_back_is_noise() -> None:
    assert {} == findings(turning([*WELL, *[-FLIP_COSINE + 0.01] * 200]))
    assert {} == findings(turning([*WELL, *[-0.9, 0.4] * 100]))


def test_it_waits_until_the_sum_of_what_lies_beyond_that_is_sure() -> None:
    weak = -FLIP_COSINE - 0.1
    almost = int(MIN_SUM / 0.1) - 1
    assert {} == findings(turning([*WELL, *[weak] * almost]))
    assert "sign-flip" in findings(turning([*WELL, *[weak] * (almost + 3)]))


def test_a_run_that_went_back_and_forth_all_along_is_silent() -> None:
    assert {} == findings(turning([-0.5] * 200))
    assert {} == findings(turning([0.3, -0.5, -0.5] * 20 + [-0.4] * 100))


def test_too_few_readings_before_say_nothing_of_how_it_was() -> None:
    assert {} == findings(turning([0.3] * (REFERENCE_READINGS - 1) + [-0.5] * 100))


def test_a_loss_that_still_falls_keeps_it_silent_until_it_does_no_more() -> None:
    falling = [5 - step / 50 for step in range(REFERENCE_READINGS + MIN_READINGS)]
    cosines = [*WELL, *[-0.5] * MIN_READINGS]
    assert {} == findings(turning(cosines, falling))
    stands = turning([*cosines, *[-0.5] * 70], [*falling, *[3.7] * 70])
    assert "its median was 3.7 before and is 3.7 since." in found(stands).cause
    assert 2 * (REFERENCE_READINGS + MIN_READINGS - 1) + 4 * MIN_READINGS == found(stands).opened_step


def test_a_loss_that_falls_by_less_than_its_noise_does_not_fall() -> None:
    noisy = [3.0 - step / 1000 + (0.4, -0.3, 0.2, -0.5)[step % 4] for step in range(REFERENCE_READINGS + MIN_READINGS)]
    assert "sign-flip" in findings(turning([*WELL, *[-0.5] * MIN_READINGS], noisy))


def test_readings_that_do_not_point_back_use_up_what_spoke_for_it_and_end_it() -> None:
    flips = [*WELL, *[-0.5] * MIN_READINGS]
    some = int(MIN_SUM / (FLIP_COSINE + 0.1))
    assert found(turning([*flips, *[0.1] * some])).active
    assert not found(turning([*flips, *[0.1] * (some + 1)])).active


def test_its_words_name_the_tensor_the_cosines_and_what_to_try() -> None:
    finding = found(turning([*WELL, *[-0.5] * MIN_READINGS]))
    assert "Steps undo each other: the gradient reverses from step to step" == finding.title
    assert (
        "most of all in blocks.0.fc.weight, so a step undoes much of the one before: their cosine is -0.50 on average"
        in finding.cause
    )
    assert finding.fix.startswith("Undo what the program changes at step 64, such as a term of the loss")
    assert "in float32" not in finding.fix
    half = turning([*WELL, *[-0.5] * MIN_READINGS]).autocast()
    half.frames.insert(1, half.frames.pop())
    assert "run blocks.0.fc in float32" in found(half).fix
    assert "blocks.0.fc.weight" == finding.tensor


def test_it_is_told_once() -> None:
    assert 1 == found(streams_run.sign_flip()).times


@pytest.mark.parametrize("broken", [True, False])
def test_a_real_run_that_steps_on_differences_of_gradients_is_named(
    broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(10, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    data = torch.randn(4000, 10)
    target = torch.sin(data.sum(1, keepdim=True))
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(160):
            if step == 80 and broken:
                step_on_differences(model)
            batch = torch.randint(4000, (256,))
            torch.nn.functional.mse_loss(model(data[batch]), target[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    findings = seen.findings()
    assert (["sign-flip"] if broken else []) == list(findings)
    if broken:
        assert 80 <= findings["sign-flip"].first_step <= 100


def step_on_differences(model: torch.nn.Module) -> None:
    last: dict[int, torch.Tensor] = {}

    def difference(number: int, gradient: torch.Tensor) -> torch.Tensor:
        sent = gradient - last.get(number, torch.zeros(()))
        last[number] = gradient
        return sent

    for number, weight in enumerate(model.parameters()):
        weight.register_hook(lambda gradient, number=number: difference(number, gradient))  # type: ignore[no-untyped-call]
