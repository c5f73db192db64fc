"""Objects of a program are found, and a tuple that it is constructing at that moment stays intact."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
import torch

from ammeter.preparation.memory import checkpoint_in_memory
from ammeter.probes.weights.own_averages import find_averages
from ammeter.tensors.hidden_reads import ORDINARY
from ammeter.tensors.live_objects import elements, instances, live_objects
from ammeter.torch_hooks.targets import Watched
from ammeter.watching.discovery import find_training


class Shy(dict[str, int]):
    """A dictionary whose code must not run."""

    def _refuse(self, *_: Any) -> NoReturn:
        raise AssertionError("a method of the program ran")

    __class__ = property(_refuse)
    __len__ = __eq__ = __getitem__ = _refuse


def test_objects_of_a_class_and_its_subclasses_are_found_and_none_of_their_code_runs() -> None:
    wanted: list[Any] = [{"a": []}, OrderedDict(a=1), Shy()]
    found = {id(value) for value in live_objects(dict)}
    assert set(map(id, wanted)) <= found
    assert id(wanted) not in found


class Named(torch.Tensor):
    """A tensor of the program's own class."""


def test_instances_of_classes_in_python_are_found_without_those_of_subclasses() -> None:
    tensor, parameter = torch.zeros(2), torch.nn.Parameter(torch.zeros(2))
    named = torch.zeros(2).as_subclass(Named)
    found = {id(value) for value in instances(*ORDINARY)}
    assert {id(tensor), id(parameter)} <= found
    assert id(named) not in found
    assert found == {id(value) for value in live_objects(torch.Tensor) if type(value) in ORDINARY}


def test_nothing_is_kept_alive() -> None:
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(3):
        live_objects(list)
    assert len(gc.get_objects()) < before + 1_000


@pytest.mark.parametrize("kinds", [(tuple,), (list, tuple), (object,)])
def test_tuples_cannot_be_asked_for(kinds: tuple[type, ...]) -> None:
    with pytest.raises(ValueError, match="ask for their owners"):
        live_objects(*kinds)


@pytest.mark.parametrize("sequence", [[], (), [1, None, "a"], (1, None, "a")])
def test_the_elements_of_a_sequence_are_in_order(sequence: list[Any] | tuple[Any, ...]) -> None:
    assert list(sequence) == elements(sequence)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def search_for_a_checkpoint() -> object:
    model, optimizer = trained()
    copies = {name: weight.clone() for name, weight in model.state_dict().items()}
    checkpoint = {"model": copies, "optimizer": optimizer.state_dict()}
    return checkpoint_in_memory(list(model.parameters()), live_objects(torch.Tensor)) and checkpoint


def search_for_averages() -> object:
    model, optimizer = trained()
    average = [weight.detach().to(torch.bfloat16) for weight in model.parameters()]
    return list(find_averages(Watched([model], [optimizer], []), live_objects(torch.Tensor))) and average


def search_for_the_training() -> object:
    model, optimizer = trained()
    return find_training(optimizer) and model


def search_for_tensors() -> object:
    tensor = torch.zeros(2)
    return any(found is tensor for found in instances(*ORDINARY))


@pytest.mark.parametrize(
    "search", [search_for_tensors, search_for_a_checkpoint, search_for_averages, search_for_the_training]
)
def test_a_tuple_under_construction_stays_intact(search: Callable[[], object]) -> None:
    """Such a tuple has missing elements, and Python completes it only if nothing else refers to it."""

    def parts() -> Iterator[object]:
        yield torch.Tensor  # a search for tensors finds what refers to their class
        yield search()
        yield 3

    first, found, third = tuple(parts())
    assert (torch.Tensor, 3) == (first, third)
    assert found
