"""no-gradients fires where parameters get no gradient, names the reason, and is silent on sound habits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, mistaken
from tests.agent.stream_judgement import findings
from tests.agent.streams import broken, healthy
from tests.agent.training import Model, line_of, watching

NAME = "no-gradients"


@broken
def no_gradients() -> Stream:
    data = {"reason": "other-parameters", "count": 6, "tensors": ["group0.0"], "raises": False, "first_step": 8}
    return mistaken("no_gradients", **data)


@healthy
def a_loss_of_zero_that_is_learnt() -> Stream:
    stream = Stream()
    for _ in range(60):
        stream.good(norm=0.0, loss=0.0)
    return stream.bye()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 12), torch.randint(3, (8,))


def loss_of(model: Any) -> torch.Tensor:
    x, y = batch()
    return cross_entropy(model(x), y)


def backward(loss: torch.Tensor) -> None:
    torch.autograd.backward(loss)


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01, **options)


def step_as_usual(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    backward(loss_of(model))
    optimizer.step()


def built_again(model: Model) -> tuple[Any, Any, Any]:
    optimizer = sgd(model)
    return Model(), optimizer, step_as_usual


def copied(model: Model) -> tuple[Any, Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return copy.deepcopy(model), optimizer, step_as_usual


def copied_with_a_closure(model: Model) -> tuple[Any, Any, Any]:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            backward(loss := loss_of(model))
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]

    return copy.deepcopy(model), torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), step


def loaded_by_assignment(model: Model) -> tuple[Any, Any, Any]:
    """load_state_dict(assign=True) replaces the parameters."""
    optimizer = torch.optim.Adam(model.parameters())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    return model, optimizer, step_as_usual


def without_grad(model: Model) -> tuple[Any, Any, Any]:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        x, y = batch()
        with torch.no_grad():
            output = model(x)
        optimizer.zero_grad()
        backward(cross_entropy(output.requires_grad_(), y))
        optimizer.step()

    return model, sgd(model), step


def detached(model: Model) -> tuple[Any, Any, Any]:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        backward(loss_of(model).detach().requires_grad_())
        optimizer.step()

    return model, sgd(model), step


def from_its_numbers(model: Model) -> tuple[Any, Any, Any]:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        backward(torch.tensor(loss_of(model).item(), requires_grad=True))
        optimizer.step()

    return model, sgd(model), step


def reset_too_late(model: Model) -> tuple[Any, Any, Any]:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        backward(loss_of(model))
        optimizer.zero_grad()
        optimizer.step()

    return model, sgd(model), step


def frozen(model: Model) -> tuple[Any, Any, Any]:
    """The loss requires a gradient all the same, for a term of its own."""

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        backward(loss_of(model) + torch.ones((), requires_grad=True).square())
        optimizer.step()

    return model.requires_grad_(False), sgd(model), step


def of_another_part(model: Model) -> tuple[Any, Any, Any]:
    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        x, y = batch()
        optimizer.zero_grad()
        backward(cross_entropy(model(x).detach() + model.last.bias, y))
        optimizer.step()

    return model, torch.optim.SGD(model.first.parameters(), lr=0.01), step


REASONS: dict[str, tuple[Callable[[Model], tuple[Any, Any, Any]], str]] = {
    function.__name__.replace("_", " "): (function, reason)
    for function, reason in (
        (built_again, "other-parameters"),
        (copied, "other-parameters"),
        (copied_with_a_closure, "other-parameters"),
        (loaded_by_assignment, "other-parameters"),
        (without_grad, "no-graph-of-output"),
        (detached, "cut"),
        (from_its_numbers, "cut"),
        (reset_too_late, "reset"),
        (frozen, "frozen"),
        (of_another_part, "unused"),
    )
}


def trained(folder: Path, make: Callable[[Model], tuple[Any, Any, Any]], steps: int = 5, **options: Any) -> Any:
    torch.manual_seed(0)
    model, optimizer, step = make(Model())
    with watching(folder, model, optimizer, **options) as seen:
        for _ in range(steps):
            step(model, optimizer)
    return seen


@pytest.mark.parametrize("name", REASONS)
def test_steps_without_a_gradient_are_found_with_their_reason(name: str, tmp_path: Path) -> None:
    make, reason = REASONS[name]
    seen = trained(tmp_path, make, 12, budget=1.0)
    finding = seen.findings()[NAME]
    assert reason == finding.evidence["reason"]
    assert (0, 7 if reason == "unused" else 1) == (finding.first_step, finding.opened_step)
    assert {NAME} == set(seen.findings())


def test_the_line_is_the_one_that_cuts_the_graph(tmp_path: Path) -> None:
    finding = trained(tmp_path / "a", without_grad).findings()[NAME]
    assert str(finding.caller).endswith(line_of(without_grad, "output = model(x)"))
    assert "recorded no graph" in finding.cause
    finding = trained(tmp_path / "b", of_another_part, 12, budget=1.0).findings()[NAME]
    assert "test_no_gradients.py" in str(finding.caller)


def test_the_loss_shows_parameters_of_another_model_where_no_model_is_known(tmp_path: Path) -> None:
    """As under `ammeter run`, which finds a model by the parameters of its optimizer."""
    model = Model()
    optimizer = sgd(copy.deepcopy(model))
    with watching(tmp_path, [], optimizer) as seen:
        for _ in range(5):
            step_as_usual(model, optimizer)
    finding = seen.findings()[NAME]
    assert ("other-parameters", 1) == (finding.evidence["reason"], finding.opened_step)
    assert (None, None) == (finding.tensor, finding.module)


def test_gradients_that_the_program_assigns_to_another_model_are_found(tmp_path: Path) -> None:
    model = Model()
    optimizer = sgd(copy.deepcopy(model))
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(5):
            found = torch.autograd.grad(loss_of(model), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
            optimizer.step()
    assert "other-parameters" == seen.findings()[NAME].evidence["reason"]


def test_a_part_that_is_newer_than_the_optimizer_is_found(tmp_path: Path) -> None:
    def new_head(model: Model) -> tuple[Any, Any, Any]:
        optimizer = sgd(model)
        model.last = torch.nn.Linear(24, 3)
        return model, optimizer, step_as_usual

    finding = trained(tmp_path, new_head, 12, budget=1.0).findings()[NAME]
    assert "replaced" == finding.evidence["reason"]
    assert ["last.weight", "last.bias"] == finding.evidence["tensors"]
    assert "the new ones (last.weight, last.bias) have gradients and belong to no optimizer of the run" in finding.cause
    assert "add_param_group" in finding.fix


def test_the_words_name_the_optimizer_and_what_to_do() -> None:
    finding: Finding = findings(no_gradients())[NAME]
    assert "SGD has parameters that are not the model's, so the model is not trained" == finding.title
    assert "SGD steps parameters that are not those of the trained model, and none" in finding.cause
    assert finding.fix.startswith("Create the optimizer from model.parameters() after")
    assert ("loop/train.py:120", 8) == (finding.caller, finding.first_step)
