"""no-loss-scaling fires where float16 autocast trains and no scaler is there; inference and bfloat16 are fine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.loss_scale.no_loss_scaling import MIN_STEPS
from tests.agent.own_functions import Passing
from tests.agent.stream_builder import Stream
from tests.agent.stream_judgement import findings, judged
from tests.agent.training import watching


def train(stream: Stream, steps: int = 12, grid: float = 1.0, full: bool = True) -> Stream:
    for _ in range(steps):
        stream.good(full=full, stats=stream.readings(grid=grid) if full else {})
    return stream


def found(stream: Stream) -> Finding:
    return findings(stream)["no-loss-scaling"]


def test_the_tenth_applied_step_opens_it() -> None:
    assert {} == findings(train(Stream().autocast(), steps=9))
    finding = found(train(Stream().autocast(), steps=10))
    assert ("ticket", 0, 9) == (finding.severity, finding.first_step, finding.opened_step)


def test_the_step_in_which_autocast_was_entered_counts_although_its_row_comes_first() -> None:
    stream = train(train(Stream(), steps=1).autocast(), steps=11)
    finding = found(stream)
    assert (0, 9) == (finding.first_step, finding.opened_step)
    assert "12 steps were applied in this way since step 0." in finding.cause
    assert finding == judged(stream, cuts=range(len(stream.frames)))[1]["no-loss-scaling"]
    assert "12 steps were applied in this way since step 3." in found(train(train(Stream(), 4).autocast(), 11)).cause
    assert "11 steps were applied in this way since step 20." in found(train(train(Stream(), 20).autocast(), 11)).cause


def test_a_loss_that_the_program_multiplies_itself_is_not_denied() -> None:
    title = "float16 autocast without an enabled GradScaler: small gradients become zero"
    assert title == found(train(Stream().autocast())).title


def test_its_words_name_the_device_and_write_the_scaler_out() -> None:
    finding = found(train(Stream().autocast()))
    assert "float16 autocast on cpu without an enabled GradScaler" in finding.cause
    assert "12 steps were applied in this way since step 0." in finding.cause
    assert "scaler = torch.amp.GradScaler('cpu')" in finding.fix
    assert (
        "scaler.scale(loss).backward(), and optimizer.step() by scaler.step(optimizer); scaler.update()" in finding.fix
    )
    assert "torch.bfloat16" in finding.fix


def test_a_scaler_that_is_disabled_is_mentioned() -> None:
    stream = Stream().autocast().event("scaler.seen", enabled=False, device="cuda", scale=1.0)
    assert "A GradScaler exists, but it is disabled" in found(train(stream)).cause


def test_an_enabled_scaler_keeps_it_silent_even_before_its_first_scale() -> None:
    assert {} == findings(train(Stream().autocast().event("scaler.seen", enabled=True, device="cpu", scale=65536.0)))


def test_a_scaler_of_the_programs_own_keeps_it_silent() -> None:
    assert {} == findings(train(Stream().autocast().event("scaler.seen", enabled=True, scale=1024.0, own=True)))


def test_a_scaler_that_comes_later_ends_it() -> None:
    assert not found(train(Stream().autocast()).good(65536)).active


def test_gradients_off_the_grid_keep_it_silent() -> None:
    assert {} == findings(train(Stream().autocast(), steps=200, grid=0.1))


def test_autocast_for_inference_keeps_it_silent() -> None:
    assert {} == findings(train(Stream().autocast(grad=False), steps=200))


def test_where_no_gradient_was_read_it_takes_fifty_steps() -> None:
    assert {} == findings(train(Stream().autocast(), steps=49, full=False))
    assert 49 == found(train(Stream().autocast(), steps=60, full=False)).opened_step


def test_with_several_ranks_the_grid_is_not_asked() -> None:
    assert 9 == found(train(Stream(world_size=2).autocast(), grid=0.5)).opened_step


def test_autocast_that_is_still_open_at_the_step_counts_as_entered() -> None:
    stream = Stream().event("usage.fp16_without_scaler", optimizer="SGD", device="cpu", autocast=True)
    assert "float16 autocast on cpu" in found(train(stream)).cause
    stream = Stream().event("usage.fp16_without_scaler", optimizer="SGD", device="cpu", autocast=False)
    assert {} == findings(train(stream))


@pytest.mark.parametrize("is_scaled", [False, True])
def test_autocast_that_was_entered_before_watching_is_found(is_scaled: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=is_scaled, init_scale=256.0)
    with torch.autocast("cpu", torch.float16), watching(tmp_path, model, optimizer, scaler, budget=1.0) as seen:
        for _ in range(MIN_STEPS + 2):
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(model(torch.randn(16, 6)).float().square().mean()))
            scaler.step(optimizer)
            scaler.update()
    assert ("no-loss-scaling" in seen.findings()) is not is_scaled


def test_gradients_that_were_on_the_grid_before_they_were_changed_open_it() -> None:
    stream = train(Stream().autocast(), grid=0.0).event("gradient.unscaled_half")
    assert found(train(stream, grid=0.0)).evidence["gradients_on_float16_grid"]
    assert {} == findings(train(Stream().event("gradient.unscaled_half"), grid=0.0))


def clipped(parameters: list[torch.Tensor]) -> None:
    """A clip by the norm that is not torch's."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.stack(torch._foreach_norm(grads)).norm()
    torch._foreach_mul_(grads, (0.1 / (norm + 1e-6)).clamp(max=1.0))


@pytest.mark.parametrize("scale", [1.0, 128.0, 1000.0, 65536.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_clip_of_the_programs_own_hides_no_missing_scaler(dtype: torch.dtype, scale: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(60):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype):
                loss = (model(torch.randn(16, 8)).float() - 1).square().mean()
            passed: Any = Passing.apply
            passed(loss, scale).backward()
            for parameter in model.parameters():
                parameter.grad.div_(scale)  # type: ignore[union-attr]
            clipped(list(model.parameters()))
            optimizer.step()
    expected = dtype is torch.float16 and scale == 1.0
    assert expected == ("no-loss-scaling" in seen.findings())


def test_autocast_that_a_function_has_enabled_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = torch.get_autocast_dtype("cpu")
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(20):
            optimizer.zero_grad()
            torch.set_autocast_enabled("cpu", True)
            torch.set_autocast_dtype("cpu", torch.float16)
            loss = (model(torch.randn(16, 8)).float() - 1).square().mean()
            torch.set_autocast_enabled("cpu", False)
            loss.backward()
            optimizer.step()
    torch.set_autocast_dtype("cpu", before)
    (entered,) = seen.events("autocast.entered")
    assert {"device": "cpu", "dtype": "float16", "grad": True} == entered.data
    assert "no-loss-scaling" in seen.findings()
