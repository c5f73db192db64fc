"""Programs with closures, wrapped optimizers and several optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.agent.healthy_programs.program import healthy, loss_of, scaled_backward, scaled_step, scaler, sgd
from tests.agent.training import Model, stream, watching


@healthy
def lbfgs(folder: Path) -> Any:
    model = torch.nn.Linear(12, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(16, 12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with watching(folder, model, optimizer) as seen:
        for _ in range(8):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    return seen


@healthy
def lbfgs_with_a_line_search_and_two_batches_in_each_evaluation(folder: Path) -> Any:
    model = torch.nn.Linear(12, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    batches = torch.randn(2, 16, 12)

    def closure() -> float:
        optimizer.zero_grad()
        losses = [(model(x) - x.sum(1, keepdim=True)).square().mean() for x in batches]
        for loss in losses:
            torch.autograd.backward(loss)
        return sum(float(loss.detach()) for loss in losses)

    with watching(folder, model, optimizer) as seen:
        for _ in range(8):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    return seen


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, as accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer, scales: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer
        self.scales = scales

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.scales.step(self.optimizer)
        self.scales.update()


@healthy
def an_optimizer_around_another_one(folder: Path) -> Any:
    model, scales = Model(), scaler()
    inner = sgd(model)
    optimizer = Wrapped(inner, scales)
    with watching(folder, model, [optimizer, inner], scales) as seen:
        for _ in range(8):
            scaled_backward(model, optimizer, scales)
            optimizer.step()
    return seen


@healthy
def an_optimizer_for_each_layer_that_steps_inside_backward(folder: Path) -> Any:
    model = Model()
    optimizers: Any = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
    with watching(folder, model, list(optimizers.values())) as seen:
        for _ in range(8):
            loss_of(model, None).backward()
    return seen


@healthy
def parameters_without_gradients_and_an_optimizer_that_is_never_used(folder: Path) -> Any:
    model, idle, scales = Model(), torch.nn.Linear(2, 2), scaler()
    optimizer, unused = torch.optim.SGD([*idle.parameters(), *model.parameters()], lr=1e-3), sgd(idle)
    with watching(folder, model, [optimizer, unused], scales) as seen:
        for _ in range(8):
            scaled_step(model, optimizer, scales)
    return seen


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimization: steps another optimizer with the gradients of nearby weights."""

    def __init__(self, parameters: Any, base: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})
        self.base = base(self.param_groups, lr=1e-3)

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["move"] = move = 0.05 * parameter.grad / (parameter.grad.norm() + 1e-9)
            parameter.add_(move)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(self.state[parameter]["move"])
        self.base.step()
        self.zero_grad()


@healthy
def two_unscaled_halves_of_a_step_whose_outer_optimizer_is_unscaled(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = Sharp(model.parameters(), torch.optim.SGD)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            for half in (optimizer.first_step, optimizer.second_step):
                scales.scale(loss_of(model)).backward()
                scales.unscale_(optimizer)
                half()
                scales.update()
    assert len(stream(seen.run, folder)[0]) in (10, 11)  # the first move may be the step of an optimizer without hooks
    return seen


@healthy
def an_optimizer_that_is_never_asked_to_step_itself(folder: Path) -> Any:
    model = Model()
    optimizer = Sharp(model.parameters(), torch.optim.SGD)
    with watching(folder, model, optimizer) as seen:
        for _ in range(10):
            for half in (optimizer.first_step, optimizer.second_step):
                loss_of(model, torch.bfloat16).backward()
                half()
    assert len(stream(seen.run, folder)[0]) in (10, 11)  # the first move may be the step of an optimizer without hooks
    return seen
