"""A program that divides the gradients of a GradScaler's loss itself: no mistake is told, and its own mistakes are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.healthy_programs.program import loss_of
from tests.agent.training import Model, Seen, events, stream, watching

SCALE = 4096.0
STEPS = 40

Change = Callable[[list[torch.nn.Parameter]], Any]


def in_place(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad.div_(SCALE)  # type: ignore[union-attr]


def through_data(parameters: list[torch.nn.Parameter]) -> None:
    """A division that changes no version of a gradient."""
    for parameter in parameters:
        parameter.grad.data.div_(SCALE)  # type: ignore[union-attr]


def at_once(parameters: list[torch.nn.Parameter]) -> None:
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    torch._foreach_mul_(gradients, 1 / SCALE)


def replaced(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        gradient: Any = parameter.grad
        parameter.grad = gradient / SCALE


def averaged(parameters: list[torch.nn.Parameter]) -> None:
    """As by an all-reduce with another rank, whose gradients are similar."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        gradient.mul_(0.5).add_(torch.randn_like(gradient) * gradient.std() * 0.3)


def kept(parameters: list[torch.nn.Parameter]) -> None:
    """Nothing changes the gradients."""


def own(parameters: list[torch.nn.Parameter]) -> None:
    """A limit of the norm in the program's own words."""
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    torch._foreach_mul_(gradients, min(1.0, 0.1 / norm))


def by_norm(parameters: list[torch.nn.Parameter]) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, 0.1)


def by_value(parameters: list[torch.nn.Parameter]) -> None:
    torch.nn.utils.clip_grad_value_(parameters, 0.01)


def trained(
    folder: Path, *changes: Change, by_scaler: bool = False, kind: Any = torch.optim.SGD
) -> tuple[Seen, list[float]]:
    """Changes the gradients after backward() and steps; returns what was recorded, and the norms before the step."""
    torch.manual_seed(0)
    model, received = Model(), list[float]()
    optimizer = kind(model.parameters(), lr=1e-6)
    scales = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)
    parameters = list(model.parameters())
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(STEPS):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            for change in changes:
                change(parameters)
            gradients: list[Any] = [parameter.grad for parameter in parameters]
            received.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())
            if by_scaler:
                scales.step(optimizer)
                scales.update()
            else:
                optimizer.step()
                scales.update(SCALE)
    return seen, received


def norms(seen: Seen, folder: Path) -> dict[int, float]:
    """The recorded norm of each step that has one."""
    rows, frames = stream(seen.run, folder)
    assert [] == events(frames, "probe.failed")
    recorded = rows.scalar("grad_norm").tolist()
    return {step: norm for step, norm in enumerate(recorded) if norm == norm}


@pytest.mark.parametrize("divide", [in_place, through_data, at_once, replaced])
@pytest.mark.parametrize("clip", [kept, own, by_norm, by_value])
def test_no_mistake_is_told_of_a_program_that_unscales_by_hand(divide: Change, clip: Change, tmp_path: Path) -> None:
    seen, received = trained(tmp_path, divide, clip)
    assert {} == seen.usage()
    assert {} == seen.findings()
    recorded = norms(seen, tmp_path)
    assert len(recorded) > 2
    if clip in (kept, own):
        assert {step: pytest.approx(received[step], rel=1e-4) for step in recorded} == recorded


@pytest.mark.parametrize("divide", [in_place, through_data])
@pytest.mark.parametrize("clip", [by_norm, by_value])
def test_a_clip_before_the_division_by_hand_is_told(divide: Change, clip: Change, tmp_path: Path) -> None:
    seen, _ = trained(tmp_path, clip, divide)
    assert ["clip_before_unscale"] == list(seen.usage())
    assert {"clip-before-unscale"} == set(seen.findings())
    (event,) = seen.events("usage.clip_before_unscale")
    assert (0, SCALE) == (event.step, event.data["scale"])


def test_a_clip_of_the_programs_own_before_the_division_by_hand_is_told_with_what_remains(tmp_path: Path) -> None:
    seen, received = trained(tmp_path, own, in_place)
    (finding,) = seen.findings().values()
    assert "clip-before-unscale" == finding.verdict
    assert pytest.approx(received[-1], rel=1e-3) == finding.evidence["norm_left"]


@pytest.mark.parametrize("before", [kept, averaged])
@pytest.mark.parametrize("clip", [by_norm, by_value])
def test_a_clip_before_the_scaler_steps_is_told_of_changed_gradients_too(
    before: Change, clip: Change, tmp_path: Path
) -> None:
    seen, _ = trained(tmp_path, before, clip, by_scaler=True)
    assert {"clip_before_unscale"} == set(seen.usage()) - {"changed_while_scaled"}
    assert 0 == seen.events("usage.clip_before_unscale")[0].step
    assert "clip-before-unscale" in seen.findings()


def test_a_clip_of_the_programs_own_before_the_scaler_steps_is_told(tmp_path: Path) -> None:
    seen, _ = trained(tmp_path, own, by_scaler=True)
    assert {"clip-before-unscale"} == set(seen.findings())


@pytest.mark.parametrize("clip", [kept, by_norm, by_value])
@pytest.mark.parametrize("before", [kept, averaged])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_on_gradients_that_nothing_divides_is_told(
    before: Change, clip: Change, kind: Any, tmp_path: Path
) -> None:
    seen, _ = trained(tmp_path, before, clip, kind=kind)
    clips = set() if clip is kept else {"clip_before_unscale"}
    assert {"gradients_not_unscaled"} | clips == set(seen.usage())
    assert SCALE == seen.usage()["gradients_not_unscaled"]["scale"]
