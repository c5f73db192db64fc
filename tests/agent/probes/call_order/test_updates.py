"""update() and unscale_() at the wrong place are reported with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.recording.session import watching as sessions
from tests.agent.healthy_programs.program import loss_of, scaled_backward, scaler
from tests.agent.probes.call_order.mistakes import here, sgd, told
from tests.agent.training import Model, watching


def scaled_backward_of_both(models: list[Model], optimizers: list[Any], scales: Any) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    scales.scale(loss_of(models[0]) + loss_of(models[1])).backward()


@pytest.mark.parametrize("growth", [1, 2000], ids=["the scale moves", "the scale stays"])
def test_update_between_two_optimizers_is_told(growth: int, tmp_path: Path) -> None:
    first, second, scales = Model(), Model(), scaler(growth_interval=growth)
    one, other = sgd(first), sgd(second)
    with watching(tmp_path, [first, second], [one, other], scales) as seen:
        for _ in range(4):
            scaled_backward_of_both([first, second], [one, other], scales)
            scales.step(one)
            scales.update()
            line = here()
            scales.step(other)
            scales.update()
    told(
        seen,
        "update_between_optimizers",
        1,
        line,
        optimizer="SGD",
        scale=1024.0 * (2 if growth == 1 else 1),
        scale_before=1024.0,
        first_step=0,
    )


@pytest.mark.parametrize("follows", [True, False], ids=["followed", "not followed"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_one_update_between_unscaled_optimizers_is_told(fused: bool, follows: bool, tmp_path: Path) -> None:
    models, scales = [Model(), Model()], scaler()
    one, other = (torch.optim.AdamW(model.parameters(), fused=fused) for model in models)
    line = ""
    with watching(tmp_path, models, [one, other], scales) as seen:
        for batch in range(6):
            if batch == 3 and not follows:
                for session in sessions():
                    session._follow(False)
                    session.governor.attention.follows = False
            scaled_backward_of_both(models, [one, other], scales)
            for optimizer in (one, other):
                scales.unscale_(optimizer)
            scales.step(one)
            if batch == 4:
                scales.update()
                line = here()
            scales.step(other)
            scales.update()
    told(
        seen,
        "update_between_optimizers",
        5,
        line,
        optimizer="AdamW",
        scale=1024.0,
        scale_before=1024.0,
        first_step=4,
        unscaled=True,
    )


def test_an_update_between_unscale_and_step_is_told(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer, line = sgd(model), ""
    with watching(tmp_path, model, optimizer, scales) as seen:
        for batch in range(6):
            scaled_backward(model, optimizer, scales)
            scales.unscale_(optimizer)
            if batch == 4:
                scales.update()
                line = here()
            scales.step(optimizer)
            scales.update()
    told(seen, "mixed_scale", 4, line, after="update", scale=1024.0, scale_before=1024.0, unscaled=True)


def test_updates_of_optimizers_that_take_turns_are_not_told(tmp_path: Path) -> None:
    """Also where one of them is unscaled and not stepped, and where its gradients wait for it."""
    models, scales = [Model(), Model()], scaler()
    one, other = (sgd(model) for model in models)
    with watching(tmp_path, models, [one, other], scales) as seen:
        for batch in range(6):
            for model, optimizer in zip(models, (one, other), strict=True):
                scaled_backward(model, optimizer, scales)
                scales.unscale_(optimizer)
                if batch != 2:
                    scales.step(optimizer)
                scales.update()
    assert {} == seen.usage()


def test_update_in_the_middle_of_an_accumulation_is_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second, scales = Model(), Model(), scaler(growth_interval=1)
    one, other = sgd(first), sgd(second)
    with watching(tmp_path, [first, second], [one, other], scales) as seen:
        for batch in range(6):
            one.zero_grad()
            scales.scale(loss_of(first) + loss_of(second)).backward()
            scales.step(one)
            if batch % 4 == 3:
                scales.step(other)
                other.zero_grad()
            scales.update()
            line = here()
    told(seen, "mixed_scale", 3, line, after="update", scale=1024.0 * 8, scale_before=1024.0, first_step=0)


def test_unscale_in_the_middle_of_an_accumulation_is_told(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            for batch in range(4):
                scales.scale(loss_of(model) / 4).backward()
                line = here()
                if batch == 1:
                    scales.unscale_(optimizer)
            scales.step(optimizer)
            scales.update()
    told(seen, "mixed_scale", 0, line, after="unscale_", optimizer="SGD", scale=1024.0)


class Wrapper(torch.optim.Optimizer):
    """What a library puts around an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups


@pytest.mark.parametrize("stepped", ["inner", "wrapper"])
def test_gradients_that_are_unscaled_through_a_wrapper_are_divided_again_by_the_inner_step(
    stepped: str, tmp_path: Path
) -> None:
    model, scales = Model(), scaler()
    optimizer, line = sgd(model), ""
    wrapper = Wrapper(optimizer)
    wrapper.step = optimizer.step  # type: ignore[method-assign]
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(40):
            scaled_backward(model, optimizer, scales)
            scales.unscale_(wrapper)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if stepped == "inner":
                scales.step(optimizer)
                line = here()
            else:
                scales.step(wrapper)
            scales.update()
    if stepped == "wrapper":
        assert {} == seen.usage()
    else:
        told(seen, "mixed_scale", 0, line, after="unscale_ of a wrapper", optimizer="SGD", scale=1024.0)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_backward_after_unscale_and_zero_grad_mixes_nothing(set_to_none: bool, tmp_path: Path) -> None:
    """A program leaves out step() and update() where the gradient norm is too large."""
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(6):
            optimizer.zero_grad(set_to_none=set_to_none)
            scales.scale(loss_of(model)).backward()
            if step != 4:  # the norm of the step before was too large
                scales.unscale_(optimizer)
            if step != 3:
                scales.step(optimizer)
                scales.update()
    assert {} == seen.usage()


def test_step_without_update_is_told_and_raises_as_ever(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(3):
            scaled_backward(model, optimizer, scales)
            if step == 0:
                scales.step(optimizer)
            else:
                with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
                    scales.step(optimizer)
                line = here()
    told(seen, "step_not_updated", 0, line, optimizer="SGD", scale=1024.0)
