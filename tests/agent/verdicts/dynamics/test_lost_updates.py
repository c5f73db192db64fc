"""lost-updates fires when half-precision weights or copies stand still for long, and never for float32 or masters."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from ammeter.recording.schedule import budget as schedule
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Tensor
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings
from tests.agent.streams_values import AVERAGED, HALF, reading
from tests.agent.training import Seen, watching


def frozen(steps: int, share: float = 0.9, tensors: tuple[Tensor, ...] = HALF) -> Stream:
    stream = Stream(tensors)
    for _ in range(steps):
        reading(stream, share, copy=tensors is AVERAGED)
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["lost-updates"]


def test_readings_over_twenty_steps_open_it_at_the_first_of_them() -> None:
    assert {} == findings(frozen(20))
    finding = found(frozen(21))
    assert ("ticket", 0, 20) == (finding.severity, finding.first_step, finding.opened_step)


@pytest.mark.parametrize(("share", "readings"), [(0.9, 5), (1.0, 8)], ids=["changing", "constant"])
def test_more_readings_of_a_copy_open_it_over_fewer_steps(share: float, readings: int) -> None:
    assert {} == findings(frozen(readings - 1, share, tensors=AVERAGED))
    finding = found(frozen(readings, share, tensors=AVERAGED))
    assert (0, readings - 1) == (finding.first_step, finding.opened_step)


def test_two_readings_are_too_few_however_far_apart() -> None:
    stream = Stream(HALF)
    for _ in range(2):
        reading(stream, 1.0, copy=False)
        for _ in range(30):
            stream.good()
    assert {} == findings(stream)
    assert 62 == found(reading(stream, 1.0, copy=False).good()).opened_step


def test_less_than_half_keeps_it_silent_and_one_such_reading_begins_it_anew() -> None:
    assert {} == findings(frozen(60, share=0.49))
    stream = reading(frozen(20), 0.1, copy=False)
    assert {} == findings(reading(stream, 0.9, copy=False))


def test_three_readings_with_less_end_it() -> None:
    stream = frozen(30)
    assert found(reading(reading(stream, 0.1, copy=False), 0.1, copy=False)).active
    assert not found(reading(stream, 0.1, copy=False)).active


def test_its_words_for_weights_say_what_the_dtype_can_hold() -> None:
    finding = found(frozen(30))
    assert "90 % of the updates of the weights are rounded away in bfloat16" == finding.title
    assert "in bfloat16 a change of less than 1/512 of a number has no effect" in finding.cause
    assert "the weights hardly follow their gradients." in finding.cause
    assert (
        "Keep the weights in float32 (model.float()) and use torch.autocast(device, dtype=torch.bfloat16)"
        in finding.fix
    )
    assert finding.evidence["copy"] is None


def test_its_words_for_a_copy_name_it() -> None:
    finding = found(frozen(30, share=0.98, tensors=AVERAGED))
    assert '98 % of the updates of the copy "ema" are rounded away in bfloat16' == finding.title
    assert "the copy hardly follows the weights." in finding.cause
    assert 'Keep "ema" in float32' in finding.fix
    assert ("ema", "ema.embed.weight") == (finding.evidence["copy"], finding.tensor)


def test_master_weights_keep_it_silent() -> None:
    stream = Stream(HALF).event("weights.census", state={}, trainable={}, masters=True)
    for _ in range(60):
        reading(stream, 1.0, copy=False)
    assert {} == findings(stream)


def train(folder: Path, dtype: torch.dtype) -> Seen:
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 3))
    average = copy.deepcopy(model).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watching(folder, model, optimizer, also={"ema": average}) as seen:
        for _ in range(60):
            model(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mine, weight in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(weight.to(dtype), 1e-5)
    return seen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_real_average_is_named_in_bfloat16_and_not_in_float32(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: (math.inf,) * 4)
    findings = train(tmp_path, dtype).findings()
    if dtype is torch.float32:
        assert {} == findings
    else:
        assert ["lost-updates"] == list(findings)
        assert "ema" == findings["lost-updates"].evidence["copy"]


def test_a_copy_that_does_not_change_at_all_may_also_be_replaced_rarely() -> None:
    finding = found(frozen(30, share=1.0, tensors=AVERAGED))
    assert 'The bfloat16 copy "ema" does not change' == finding.title
    assert "If the program updates it in each step, rounding removes the updates" in finding.cause
    assert "A copy that the program replaces rarely looks the same." in finding.cause
    assert finding.fix.startswith('If it is an average, keep "ema" in float32')
