"""The Functions of a program between finite and bad gradients are named, in a real run from the single bad step on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.probes.origin import gradient_origin
from ammeter.probes.origin.graph import own_functions
from ammeter.probes.origin.graph.nodes import nodes_of
from tests.agent.own_functions import Passing
from tests.agent.training import Seen, line_of, watching

Weights = dict[str, torch.nn.Linear]


class Other(Passing):
    pass


LINE = line_of(Passing.backward, "@staticmethod")


def names(build: Callable[[Weights, torch.Tensor], torch.Tensor], bad: str) -> list[str]:
    """The Functions that are named if these weights have bad gradients and the others finite ones."""
    layers = {name: torch.nn.Linear(4, 4, bias=False) for name in ("first", "side", "last")}
    nodes = nodes_of(build(layers, torch.ones(2, 4)).sum(), reads=False)
    ids = {name: id(layer.weight) for name, layer in layers.items()}
    wrong = {ids[name] for name in bad.split()}
    found = own_functions.between(nodes, wrong, set(ids.values()) - wrong)
    assert {LINE} >= {entry["line"].rpartition("/")[2] for entry in found}
    return [entry["name"] for entry in found]


def apply(function: Any, x: torch.Tensor) -> torch.Tensor:
    return function.apply(x, 1.0)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("build", "bad", "expected"),
    [
        (lambda of, x: of["last"](apply(Passing, of["first"](x))) + of["side"](x), "first", ["Passing"]),
        (lambda of, x: of["last"](apply(Passing, of["side"](of["first"](x)))), "first side", ["Passing"]),
        (lambda of, x: of["last"](apply(Other, apply(Passing, of["first"](x)))), "first", ["Passing", "Other"]),
        (lambda of, x: of["last"](of["first"](x)) + apply(Other, of["side"](x)), "first", []),
        (lambda of, x: apply(Passing, of["last"](of["first"](x))), "first", []),
        (lambda of, x: of["last"](apply(Passing, of["first"](x)) + of["side"](x)), "first side", []),
    ],
    ids=["one", "before it", "two", "on another branch", "also before finite ones", "on one of two bad branches"],
)
def test_a_function_is_named_if_all_bad_gradients_and_no_finite_one_come_through_it(
    build: Callable[[Weights, torch.Tensor], torch.Tensor], bad: str, expected: list[str]
) -> None:
    assert expected == names(build, bad)


def test_torchs_own_functions_are_not_named() -> None:
    from torch.utils.checkpoint import checkpoint

    def build(of: Weights, x: torch.Tensor) -> torch.Tensor:
        hidden: Any = checkpoint(of["side"], of["first"](x), use_reentrant=True)
        return of["last"](hidden)  # type: ignore[no-any-return]

    assert [] == names(build, "first")


def test_more_than_a_few_are_no_help() -> None:
    kinds = [type(f"Kind{at}", (Passing,), {}) for at in range(own_functions.MAX_FUNCTIONS + 1)]

    def build(of: Weights, x: torch.Tensor) -> torch.Tensor:
        x = of["first"](x)
        for kind in kinds:
            x = apply(kind, x)
        return of["last"](x)  # type: ignore[no-any-return]

    assert [] == names(build, "first")


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.factor = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        passed: Any = Passing.apply
        return self.last(passed(self.first(x), self.factor))  # type: ignore[no-any-return]


def trained(folder: Path, bad_step: int) -> Seen:
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer) as seen:
        for step in range(20):
            model.factor = math.nan if step == bad_step else 1.0
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.randn(8, 4)).square().mean())
            optimizer.step()
    assert [] == seen.events("probe.failed")
    return seen


def test_a_single_bad_step_names_its_function(tmp_path: Path) -> None:
    finding = trained(tmp_path, 12).findings()["nonfinite-gradient"]
    assert ["Passing"] == finding.evidence["functions"]
    assert "has this autograd.Function of the program: Passing at " in finding.cause
    assert f"{LINE}. 1 such step was applied" in finding.cause
    assert "Passing.backward()" in finding.fix


def test_a_run_without_bad_steps_names_none(tmp_path: Path) -> None:
    assert [] == trained(tmp_path, -1).events("origin.functions")


def test_a_few_bad_steps_of_a_run_are_searched(tmp_path: Path) -> None:
    """Which ones depends on the load: fewer gradients are read, and of the bad rows in a batch one is searched."""
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = copy.deepcopy(model.state_dict())
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(160):
            model.factor = math.nan if step % 10 == 5 else 1.0
            optimizer.zero_grad()
            torch.autograd.backward(model(torch.randn(8, 4)).square().mean())
            optimizer.step()
            model.load_state_dict(state)
    assert gradient_origin.MAX_NAMED_STEPS < len(seen.events("gradient.nonfinite"))
    searched = [event.data["bad_step"] for event in seen.events("origin.functions")]
    assert gradient_origin.MAX_NAMED_STEPS == len(set(searched))
    assert {5} == {step % 10 for step in searched}
