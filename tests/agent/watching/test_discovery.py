"""The wrapper of a model is found where a framework hands on the model alone."""

from __future__ import annotations

import pytest
import torch

from ammeter.watching.discovery import outermost


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
