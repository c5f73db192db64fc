"""Every kind of scaler and optimizer: skips, scales and norms are those of the program."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.wire.columns import measured
from tests.agent.recording.programs.loops import Loop, Trained, amp_step, eight_steps, same_rows, train
from tests.agent.training import events, stream

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "fused SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "foreach AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "foreach SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_skip_and_the_unscaled_norm_are_known_for_every_kind_of_optimizer(
    kind: str, clip: float | None, tmp_path: Path
) -> None:
    norms: list[float] = []

    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        norms.clear()
        for index in range(8):
            optimizer.zero_grad()
            spoil = float("inf") if index in (2, 3) else 1.0
            scaler.scale(model(torch.ones(3, 4)).square().mean() * spoil).backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            scaled = torch.cat([gradient.reshape(-1) for gradient in gradients])
            norms.append(float(scaled.double().norm()) / scaler.get_scale())
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()

    rows = same_rows(tmp_path, loop, optimizer=OPTIMIZERS[kind])
    assert [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0] == rows.scalar("skipped").tolist()
    assert [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0] == rows.scalar("applied").tolist()
    good = np.isfinite(norms)
    assert np.array(norms)[good] == pytest.approx(rows.scalar("grad_norm")[good], rel=1e-5)
    assert not np.isfinite(rows.scalar("grad_norm")[~good]).any()


class WithSuper(torch.amp.GradScaler):
    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs)

    def unscale_(self, optimizer: Any) -> None:
        super().unscale_(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


class WithoutSuper(torch.amp.GradScaler):
    """Updates by rules of its own, as sharded scalers do."""

    def update(self, new_scale: Any = None) -> None:
        found = sum(
            float(number)
            for state in self._per_optimizer_states.values()
            for number in state["found_inf_per_device"].values()
        )
        assert self._scale is not None
        self._scale.mul_(0.25 if found else 1.0)
        self._per_optimizer_states.clear()


class Bare(torch.amp.GradScaler):
    pass


@pytest.mark.parametrize(
    ("kind", "scales"), [(WithSuper, [64, 32, 16]), (WithoutSuper, [64, 16, 4]), (Bare, [64, 32, 16])]
)
def test_a_scaler_of_the_programs_own_class_counts_once(kind: Any, scales: list[float], tmp_path: Path) -> None:
    rows = same_rows(tmp_path, eight_steps, scaler=lambda: kind("cpu", init_scale=64.0))
    first, second, third = scales
    assert [first, first, first, second, third, third, third, third] == rows.scalar("scale").tolist()
    assert [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0] == rows.scalar("skipped").tolist()
    assert [1.0] * 8 == rows.scalar("micro_batches").tolist()
    assert measured(rows.scalar("loss")).all()
    assert rows.scalar("grad_norm")[0] < 10
    _, frames = stream(train(tmp_path, eight_steps, scaler=lambda: kind("cpu", init_scale=64.0)).id, tmp_path)
    assert [first, second] == [event.data["from"] for event in events(frames, "scaler.backoff")]


def test_a_scaler_that_watch_was_not_told_of_is_seen_at_its_first_use(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        eight_steps(model, optimizer, torch.amp.GradScaler("cpu", init_scale=64.0))

    trained = train(tmp_path, loop, scaler=lambda: None)
    _, frames = stream(trained.id, tmp_path)
    seen = [(event.step, event.data) for event in events(frames, "scaler.seen")]
    assert [(0, {"enabled": True, "device": "cpu", "scale": 64.0})] == seen
    assert measured(trained.rows().scalar("scale")).all()


def test_a_disabled_scaler_in_bfloat16_has_no_scale_and_right_norms(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.ones(3, 4)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
            scaler.step(optimizer)
            scaler.update()

    norms: list[float] = []
    rows = same_rows(tmp_path, loop, scaler=lambda: torch.amp.GradScaler("cpu", enabled=False))
    assert norms[:3] == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)
    assert not measured(rows.scalar("scale")).any()


def test_two_scalers_each_unscale_their_own_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (2.0, 1024.0)]
    run = ammeter.watch(models, optimizers, scalers, dir=tmp_path)
    expected: list[float] = []
    for _ in range(3):
        squares = 0.0
        for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 3)).square().mean()).backward()
            scaler.unscale_(optimizer)
            squares += float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)) ** 2
            scaler.step(optimizer)
            scaler.update()
        expected.append(squares**0.5)
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert expected == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)


def test_an_optimizer_without_the_scaler_is_not_divided_by_a_scale_of_another_step(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        amp_step(model, optimizer, scaler)
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().mean().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
        optimizer.step()

    norms: list[float] = []
    rows = same_rows(tmp_path, loop)
    assert norms[0] == pytest.approx(float(rows.scalar("grad_norm")[1]), rel=1e-5)


def test_a_skipped_step_shows_the_gradients_as_they_were_before_the_clip_spoilt_them(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        for index in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 4)).square().mean()).backward()
            if index == 1:
                model[2].weight.grad[0, 0] = float("inf")  # type: ignore[index]
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    trained = _train_starved(tmp_path, loop)
    _, frames = stream(trained.id, tmp_path)
    (told,) = events(frames, "gradient.nonfinite")
    assert [{"tensor": "2.weight", "nans": 0, "infs": 1}] == told.data["tensors"]
    assert 1 == told.data["finite_after"]


def _train_starved(folder: Path, loop: Loop) -> Trained:
    """Trains while the governor allows no reading that it may refuse."""

    def starved(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        from ammeter.recording import session

        (here,) = [active for active in session._sessions if not active.off]
        for bucket in (here.governor.norms, here.governor.full):
            bucket.share, bucket.fits = 0.0, False
        loop(model, optimizer, scaler)

    return train(folder, starved)


@pytest.mark.parametrize("value", [1e25, 1e-28])
def test_gradients_whose_squares_leave_float32_are_large_or_small_but_not_broken(value: float, tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(10))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    run = ammeter.watch(torch.nn.ParameterList([parameter]), optimizer, dir=tmp_path)
    for _ in range(30):
        parameter.grad = torch.full((10,), value)
        optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "gradient.nonfinite")
    assert [value * 10**0.5] * 30 == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)


def test_a_scheduler_around_the_optimizer_changes_nothing(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(4):
            amp_step(model, optimizer, scaler)
            schedule.step()

    assert [1.0] * 4 == same_rows(tmp_path, loop).scalar("applied").tolist()


def test_an_optimizer_that_steps_inside_backward_is_not_the_watched_one(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        def apply(parameter: torch.Tensor) -> None:
            torch.optim.SGD([parameter], lr=0.01).step()

        handles = [parameter.register_post_accumulate_grad_hook(apply) for parameter in model.parameters()]  # type: ignore[no-untyped-call]
        eight_steps(model, optimizer, scaler)
        for handle in handles:
            handle.remove()

    def alone(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        loop(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))

    bare = train(tmp_path, alone, watched=False, scaler=lambda: None)
    watched = train(tmp_path, alone, scaler=lambda: None)
    assert repr(bare.weights) == repr(watched.weights)
    assert 8 == len(watched.rows())


def test_a_scale_that_fell_to_zero_is_written_without_a_warning(tmp_path: Path) -> None:
    def loop(model: torch.nn.Module, optimizer: Any, scaler: Any) -> None:
        for _ in range(3):
            amp_step(model, optimizer, scaler, float("inf"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = same_rows(tmp_path, loop, scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**-148))
    assert [2.0**-148, 2.0**-149, 0.0] == rows.scalar("scale").tolist()
