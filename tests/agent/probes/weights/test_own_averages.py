"""An average in half precision that a program keeps itself is found and measured; other tensors are not."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.probes.weights.own_averages import find_averages
from ammeter.tensors.live_objects import live_objects
from ammeter.torch_hooks.targets import Watched
from ammeter.wire.columns import View, measured
from tests.agent.training import Model, Seen, stream

SHARE = 0.001
"""Share by which an average follows its weights in a step; less than half the distance of numbers in bfloat16."""

Keep = Callable[[torch.nn.Module, torch.dtype], Callable[[], object]]
"""Makes an average of a model in a dtype; returns the function that updates it."""


def replaced_in_a_dict(model: torch.nn.Module, dtype: torch.dtype) -> Callable[[], None]:
    kept = {name: weight.detach().to(dtype) for name, weight in model.named_parameters()}

    def update() -> None:
        for name, weight in model.named_parameters():
            kept[name] = kept[name] + SHARE * (weight.detach().to(dtype) - kept[name])

    return update


def written_in_a_list(model: torch.nn.Module, dtype: torch.dtype) -> Callable[[], None]:
    kept = [weight.detach().to(dtype, copy=True) for weight in model.parameters()]

    def update() -> None:
        torch._foreach_mul_(kept, 1 - SHARE)
        torch._foreach_add_(kept, [weight.detach().to(dtype) for weight in model.parameters()], alpha=SHARE)

    return update


def through_data_of_a_module(model: torch.nn.Module, dtype: torch.dtype) -> Callable[[], None]:
    kept = Model().to(dtype)
    kept.load_state_dict(model.state_dict())

    def update() -> None:
        for average, weight in zip(kept.parameters(), model.parameters(), strict=True):
            average.data.add_((weight.detach() - average.data).to(dtype), alpha=SHARE)

    return update


def never_updated(model: torch.nn.Module, dtype: torch.dtype) -> Callable[[], object]:
    """A frozen reference model, with which the program compares outputs."""
    kept = [weight.detach().to(dtype) for weight in model.parameters()]
    return kept.__len__  # the function keeps the list


def refreshed(model: torch.nn.Module, dtype: torch.dtype) -> Callable[[], None]:
    """A copy for evaluation, taken anew at each step."""
    kept = [weight.detach().to(dtype) for weight in model.parameters()]

    def update() -> None:
        torch._foreach_copy_(kept, [weight.detach() for weight in model.parameters()])

    return update


def trained(folder: Path, keep: Keep, dtype: torch.dtype) -> tuple[View, dict[str, Any]]:
    torch.manual_seed(5)
    model = Model()
    update = keep(model, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = ammeter.watch(model, optimizer, dir=folder)
    assert run._session is not None
    run._session.governor.weights.share = math.inf
    for _ in range(70):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        update()
    run.close()
    return stream(run.id, folder)[0], Seen(run.id, folder).findings()


@pytest.mark.parametrize("keep", [replaced_in_a_dict, written_in_a_list, through_data_of_a_module])
def test_an_average_in_bfloat16_is_found_and_its_lost_updates_are_named(keep: Keep, tmp_path: Path) -> None:
    found = trained(tmp_path, keep, torch.bfloat16)[1]
    assert "average" == found["lost-updates"].evidence["copy"]


@pytest.mark.parametrize("keep", [replaced_in_a_dict, written_in_a_list, through_data_of_a_module])
def test_an_average_in_float32_is_not_followed(keep: Keep, tmp_path: Path) -> None:
    rows, found = trained(tmp_path, keep, torch.float32)
    assert "lost-updates" not in found
    assert not [tensor.name for tensor in rows.schema.tensors if tensor.name.startswith("average")]


@pytest.mark.parametrize("keep", [never_updated, refreshed])
def test_a_copy_that_is_no_average_loses_nothing(keep: Keep, tmp_path: Path) -> None:
    rows, found = trained(tmp_path, keep, torch.bfloat16)
    assert "lost-updates" not in found
    named = [at for at, tensor in enumerate(rows.schema.tensors) if tensor.name.startswith("average")]
    assert named
    if keep is never_updated:
        assert not measured(rows.stat("update.lost")[named]).any()


def test_moments_and_casts_with_the_shapes_of_the_weights_are_no_average() -> None:
    model = Model()
    others = [torch.full_like(weight, 7.0, dtype=torch.bfloat16) for weight in model.parameters()]
    views = {name: weight.detach() for name, weight in Model().bfloat16().named_parameters()}
    gc.collect()  # earlier tests have left averages in reference cycles
    assert [] == list(find_averages(Watched([model], [], []), live_objects(torch.Tensor)))
    assert others
    assert views


def test_a_container_that_the_program_no_longer_has_is_released() -> None:
    model = Model()
    kept = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
    watched = Watched([model], [], [])
    gc.collect()
    (pairs,) = find_averages(watched, live_objects(torch.Tensor))
    name, tensor, present = pairs[0]
    assert tensor is kept[name] is present()
    kept[name] = tensor + 1
    assert kept[name] is present()
    del kept
    gc.collect()
    assert present() is None


def test_an_average_that_is_deleted_after_the_training_is_released_by_an_evaluation(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = Model()
    update = replaced_in_a_dict(model, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    watched = run._session.watched
    presents = [present for index, present, _ in watched.copies if index in watched.found_copies]
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 12)).square().mean().backward()
        optimizer.step()
        update()
    average = weakref.ref(presents[0]())
    del update
    gc.collect()
    assert average() is not None
    model.eval()
    model(torch.randn(8, 12))
    assert average() is None
    run.close()
