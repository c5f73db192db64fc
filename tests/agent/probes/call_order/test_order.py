"""Calls in the wrong order, each told with its line, where the gradients that it spoiled are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.healthy_programs.program import loss_of, scaled_backward, scaler
from tests.agent.probes.call_order.mistakes import here, sgd, told
from tests.agent.training import Model, events, stream, watching

Backward = Callable[[Any, Any], str]


def _raw(scales: Any, model: Any) -> str:
    loss_of(model).backward()
    return here()


def _thrown_away(scales: Any, model: Any) -> str:
    loss = loss_of(model)
    scales.scale(loss)
    loss.backward()
    return here()


def _by_function(scales: Any, model: Any) -> str:
    torch.autograd.backward([loss_of(model), loss_of(model)])
    return here()


def _by_grad(scales: Any, model: Any) -> str:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss_of(model), parameters)
    line = here()
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad = gradient
    return line


def _second(scales: Any, model: Any) -> str:
    scales.scale(loss_of(model)).backward()
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    return here()


def _second_on_one_layer(scales: Any, model: Any) -> str:
    scales.scale(loss_of(model)).backward()
    model.middle.weight.square().sum().backward()
    return here()


def _added(scales: Any, model: Any) -> str:
    (scales.scale(loss_of(model)) / 2 + model.first.weight.square().sum()).backward()
    return here()


def _stacked(scales: Any, model: Any) -> str:
    torch.stack([scales.scale(loss_of(model)), loss_of(model)]).sum().backward()  # type: ignore[no-untyped-call]
    return here()


@pytest.mark.parametrize(
    "backward", [_raw, _thrown_away, _by_function, _by_grad, _second, _second_on_one_layer, _added, _stacked]
)
@pytest.mark.parametrize("since", [0, 5], ids=["from the first step", "later"])
@pytest.mark.parametrize("unscale", [False, True], ids=["step", "unscale_"])
def test_what_was_not_scaled_is_told(backward: Backward, since: int, unscale: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer, line = sgd(model), ""
    scales.scale(torch.ones(()))
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(since + 3):
            optimizer.zero_grad()
            if step < since:
                scales.scale(loss_of(model)).backward()
            else:
                line = backward(scales, model)
            if unscale:
                scales.unscale_(optimizer)
            scales.step(optimizer)
            scales.update()
    scaled_too = backward in (_second, _second_on_one_layer, _added, _stacked)
    told(seen, "loss_not_scaled", since, line, optimizer="SGD", scale=2.0**10, scaled_too=scaled_too)


def test_what_was_not_scaled_is_told_of_fused_optimizers(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scales.scale(torch.ones(()))
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            line = here()
            scales.step(optimizer)
            scales.update()
    told(seen, "loss_not_scaled", 0, line, optimizer="AdamW")


def test_a_scale_that_was_never_used_is_told_before_the_scaler_refuses(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scales) as seen:
        loss_of(model).backward()
        line = here()
        with pytest.raises(AssertionError, match="_scale is None"):
            scales.step(optimizer)
    told(seen, "loss_not_scaled", 0, line, scale=None)


@pytest.mark.parametrize("clip", [False, True], ids=["bare", "clipped"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_plain_step_on_scaled_gradients_is_told(kind: Any, clip: bool, tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = kind(model.parameters(), lr=1e-6)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(4):
            scaled_backward(model, optimizer, scales)
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            line = here()
    usage = seen.usage()
    assert ({"clip_before_unscale"} if clip else set()) | {"gradients_not_unscaled"} == set(usage)
    assert usage["gradients_not_unscaled"]["caller"].endswith(line)
    assert (kind.__name__, 1024.0) == tuple(usage["gradients_not_unscaled"][key] for key in ("optimizer", "scale"))


def test_a_network_that_is_frozen_while_another_trains_is_reset_all_the_same(tmp_path: Path) -> None:
    """Its optimizer is looked at while none of its parameters requires a gradient."""
    models, scales = [Model(), Model()], scaler()
    one, other = (sgd(model, lr=1e-3) for model in models)
    with watching(tmp_path, models, [one, other], scales) as seen:
        for _ in range(40):
            models[1].requires_grad_(False)
            scaled_backward(models[0], one, scales)
            scales.step(one)
            models[1].requires_grad_(True)
            scales.update()
            scaled_backward(models[1], other, scales)
            scales.step(other)
            scales.update()
    assert {} == seen.usage()


@pytest.mark.parametrize("model", [Model, lambda: torch.nn.Linear(12, 2)], ids=["deep", "shallow"])
def test_float16_without_a_scaler_is_told(model: Any, tmp_path: Path) -> None:
    network = model()
    optimizer = sgd(network)
    with watching(tmp_path, network, optimizer) as seen:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(network).backward()
            line = here()
            optimizer.step()
    told(seen, "fp16_without_scaler", 0, line, optimizer="SGD")


def test_a_mistake_is_written_while_the_run_goes_on(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    scales.scale(torch.ones(()))
    with watching(tmp_path, model, optimizer, scales) as seen:
        loss_of(model).backward()
        scales.step(optimizer)
        scales.update()
        assert 1 == len(events(stream(seen.run, tmp_path)[1], "usage.loss_not_scaled"))
