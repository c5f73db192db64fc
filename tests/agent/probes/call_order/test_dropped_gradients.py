"""A Function that returns no gradient for a parameter is named; parameters without one for other reasons are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import line_of, watching


class Product(torch.autograd.Function):
    """Decides by a copy of the weight, made without gradients, whether the weight needs one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        narrow = weight.to(torch.bfloat16)
        ctx.needed = narrow.requires_grad
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x if ctx.needed else None


class Complete(Product):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x


class Layer(torch.nn.Module):
    def __init__(self, function: Any = Product, cast: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.zeros(4))
        self.function, self.cast = function, cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.double().float() if self.cast else self.weight
        result: torch.Tensor = self.function.apply(x, weight)
        return result + self.bias


def model_of(*layers: Layer) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), *layers)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 12) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(model(torch.randn(8, 4)).square().mean())
        optimizer.step()


@pytest.mark.parametrize("layers", [(Layer(),), (Layer(), Layer(Complete)), (Layer(), Layer())])
def test_the_function_and_its_parameters_are_named(layers: tuple[Layer, ...], tmp_path: Path) -> None:
    model = model_of(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer)
    (event,) = seen.events("usage.no_gradients")
    broken = [f"{at}.weight" for at, layer in enumerate(layers, 1) if layer.function is Product]
    assert ("dropped", "Product", broken) == tuple(event.data[key] for key in ("reason", "function", "tensors"))
    assert event.data["caller"].endswith(line_of(Product.backward, "@staticmethod"))
    finding = seen.findings()["no-gradients"]
    assert "Product returns no gradient for a parameter" == finding.title
    assert f"({', '.join(broken)}), of which the loss is computed, had no gradient after backward()" in finding.cause
    assert "ctx.needs_input_grad" in finding.fix


def test_casts_and_views_before_the_function_do_not_hide_it(tmp_path: Path) -> None:
    model = model_of(Layer(cast=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer)
    assert ["1.weight"] == seen.events("usage.no_gradients")[0].data["tensors"]


def complete(tmp_path: Path) -> torch.nn.Module:
    return model_of(Layer(Complete))


def unused(tmp_path: Path) -> torch.nn.Module:
    model = model_of(Layer(Complete))
    model[0].extra = torch.nn.Parameter(torch.zeros(4))
    return model


def frozen(tmp_path: Path) -> torch.nn.Module:
    model = model_of(Layer())
    model[1].weight.requires_grad_(False)
    return model


def summed_elsewhere(tmp_path: Path) -> torch.nn.Module:
    layer = Layer()
    layer.weight.main_grad = torch.zeros(4, 4)  # type: ignore[attr-defined]
    return model_of(layer)


def used_in_backward(tmp_path: Path) -> torch.nn.Module:
    """The gradient is used, and removed, as soon as it is complete."""
    layer = Layer(Complete)
    weight: Any = layer.weight
    weight.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    return model_of(layer)


@pytest.mark.parametrize("build", [complete, unused, frozen, summed_elsewhere, used_in_backward])
def test_other_parameters_without_a_gradient_are_no_fault(
    build: Callable[[Path], torch.nn.Module], tmp_path: Path
) -> None:
    model = build(tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer)
    assert {} == seen.usage()


def test_a_weight_that_is_trained_from_a_buffer_of_the_program_is_no_fault(tmp_path: Path) -> None:
    model = model_of(Layer())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    weight: Any = model[1].weight
    optimizer.register_step_post_hook(lambda *_: weight.data.mul_(0.99))
    with watching(tmp_path, model, optimizer) as seen:
        train(model, optimizer)
    assert {} == seen.usage()
