"""Which framework drives an automatic run; a framework with other names costs its values, and nothing else."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from ammeter.integrations import loaded
from ammeter.watching.handle import Run


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)


def test_a_program_without_a_framework_has_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in loaded.INTEGRATIONS:
        monkeypatch.delitem(sys.modules, module, raising=False)
    known = loaded.known([_optimizer()])
    assert ({}, {}, []) == (known.config, known.better, known.attach(Run()))


def test_a_driver_is_known_by_its_optimizer_also_by_a_wrapped_one() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer
            self.param_groups = optimizer.param_groups

    own, other = _optimizer(), _optimizer()
    assert loaded.trains([own], [own])
    assert loaded.trains([Wrapper(own)], [own])
    assert not loaded.trains([other, None], [own])


def test_a_framework_with_other_names_is_logged_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def known(_: Any) -> Any:
        raise AttributeError("no attribute 'optimizers'")

    broken: Any = ModuleType("broken")
    broken.known = known
    monkeypatch.setitem(sys.modules, "a_framework", ModuleType("a_framework"))
    monkeypatch.setitem(sys.modules, "ammeter.integrations.broken", broken)
    monkeypatch.setattr(loaded, "INTEGRATIONS", {"a_framework": "broken"})
    with caplog.at_level(logging.WARNING, "ammeter"):
        assert [] == loaded.known([_optimizer()]).attach(Run())
        assert [] == loaded.Known(follow=known).attach(Run())
    assert 2 * ["ammeter records no values of the framework (AttributeError: no attribute 'optimizers')"] == (
        caplog.messages
    )
