"""The wrapper of a model, and the optimizers inside of one that contains several."""

from __future__ import annotations

import pytest
import torch

from ammeter.watching.discovery import find_training, outermost


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_is_found_in_its_wrappers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert outermost(model) is model
    parallel = torch.nn.DataParallel(model)
    assert outermost(model) is parallel
    compiled = torch.compile(parallel)
    assert outermost(model) is compiled


def test_a_module_that_has_more_or_only_keeps_the_model_is_no_wrapper() -> None:
    model = torch.nn.Linear(2, 2)
    larger = torch.nn.Module()
    larger.module, larger.head = model, torch.nn.Linear(2, 1)
    kept = torch.nn.ModuleDict({"student": model})
    assert outermost(model) is model
    assert kept["student"] is larger.module


class Several(torch.optim.Optimizer):
    """Contains several optimizers, as those of torchtitan."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.optimizers = [torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()]
        super().__init__(model.parameters(), {})


def test_an_optimizer_that_contains_several_is_not_one_more() -> None:
    several = Several(torch.nn.Linear(2, 2))
    training = find_training(several)
    assert training is not None
    own = [optimizer for optimizer in training.optimizers if optimizer in (several, *several.optimizers)]
    assert several.optimizers == own
