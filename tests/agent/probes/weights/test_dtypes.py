from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import ammeter
from ammeter.report.diagnosis import diagnose
from tests.agent.training import Recipe, events, stream, train

Optimize = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def _adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def _census(
    folder: Path,
    model: torch.nn.Module,
    optimize: Optimize = _adamw,
    steps: int = 3,
    between: Callable[[int, Any, Any], None] = lambda step, model, optimizer: None,
) -> list[Any]:
    """(step, data) of each census of a run."""
    torch.manual_seed(0)
    optimizer = optimize(list(model.parameters()))
    run = ammeter.watch(model, optimizer, dir=folder)
    for step in range(steps):
        between(step, model, optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
    run.close()
    frames = stream(run.id, folder)[1]
    assert [] == events(frames, "probe.failed")
    return [(event.step, event.data) for event in events(frames, "weights.census")]


def _linear(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return torch.nn.Linear(4, 3).to(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_dtypes_are_counted_before_the_first_step_and_with_the_optimizers_state_after_it(
    dtype: str, tmp_path: Path
) -> None:
    weights = {"parameters": {dtype: 15}, "trainable": {dtype: 15}, "masters": False}
    before: dict[str, Any]
    names = ["exp_avg", "exp_avg_sq"] if dtype in ("bfloat16", "float16") else []
    before = {"state": {}, "half_state": [], "updates": None}
    after = {"state": {dtype: 30}, "half_state": names, "updates": 0}
    assert [(0, weights | before), (0, weights | after)] == _census(tmp_path, _linear(getattr(torch, dtype)))


@pytest.mark.parametrize("way", ["fully_shard", "DistributedDataParallel", "without a policy"])
def test_the_mixed_precision_of_a_wrapper_is_the_precision_of_the_run(way: str, tmp_path: Path) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        if way == "DistributedDataParallel":
            model = torch.nn.parallel.DistributedDataParallel(
                model, mixed_precision=torch.nn.parallel.distributed._MixedPrecision(param_dtype=torch.bfloat16)
            )
        else:
            policies: Any = {"mp_policy": half} if way == "fully_shard" else {}
            fully_shard(model, **policies)
        censuses = _census(tmp_path, model)
    finally:
        torch.distributed.destroy_process_group()
    expected = {"without a policy": None}.get(way, "bfloat16")
    assert [expected] * 2 == [data.get("compute") for _, data in censuses]
    assert (expected or "float32") == diagnose(next(tmp_path.iterdir())).as_json()["run"]["precision"]


@pytest.mark.parametrize("loaded", ["before watch()", "after watch()"])
def test_updates_that_an_optimizer_has_behind_it_are_told(loaded: str, tmp_path: Path) -> None:
    model = _linear()
    optimizer, earlier = (_adamw(list(model.parameters())) for _ in range(2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(7):
        earlier.step()
    if loaded == "before watch()":
        optimizer.load_state_dict(earlier.state_dict())
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    if loaded == "after watch()":
        optimizer.load_state_dict(earlier.state_dict())
    optimizer.step()
    optimizer.zero_grad()
    run.close()
    frames = stream(run.id, tmp_path)[1]
    counted = [
        event.data["updates"] for event in (*events(frames, "weights.census"), *events(frames, "optimizer.restored"))
    ]
    assert {7} == {count for count in counted if count is not None}


def test_frozen_weights_are_parameters_that_are_not_trained(tmp_path: Path) -> None:
    model = torch.nn.Sequential(_linear(torch.float16).requires_grad_(False), torch.nn.Linear(3, 2))
    last = _census(tmp_path, model)[-1][1]
    assert {"float16": 15, "float32": 8} == last["parameters"]
    assert {"float32": 8} == last["trainable"]
    assert {"float32": 16} == last["state"]


class MastersInState(torch.optim.Optimizer):
    """Steps a float32 copy of each weight, kept in its state, and rounds it back."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["moment"], state["kept"] = torch.zeros_like(parameter, dtype=torch.float32), parameter.float()
            state["moment"].mul_(0.9).add_(parameter.grad)
            state["kept"].sub_(state["moment"], alpha=0.01)
            parameter.copy_(state["kept"])


def test_masters_in_the_optimizers_state_are_recognised_whatever_their_name(tmp_path: Path) -> None:
    (_, first), (_, second) = _census(tmp_path, _linear(torch.bfloat16), MastersInState)
    assert (False, {}) == (first["masters"], first["state"])
    assert (True, {"float32": 30}) == (second["masters"], second["state"])


def test_float32_moments_of_half_weights_are_no_masters(tmp_path: Path) -> None:
    class WideMoments(MastersInState):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                state.setdefault("moment", torch.zeros_like(parameter, dtype=torch.float32)).add_(parameter.grad)
                parameter.sub_(state["moment"].to(parameter.dtype), alpha=0.01)

    last = _census(tmp_path, _linear(torch.bfloat16), WideMoments)[-1][1]
    assert (False, {"float32": 15}) == (last["masters"], last["state"])


def test_masters_that_are_stepped_in_place_of_the_models_weights_are_recognised(tmp_path: Path) -> None:
    def optimize(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return _adamw([torch.nn.Parameter(parameter.detach().float()) for parameter in parameters])

    first = _census(tmp_path, _linear(torch.float16), optimize)[0][1]
    assert first["masters"]
    assert {"float16": 15, "float32": 15} == first["parameters"]


def test_a_dtype_or_a_group_that_changes_is_told_again(tmp_path: Path) -> None:
    def between(step: int, model: Any, optimizer: Any) -> None:
        if step == 20:
            model.bfloat16()
        if step == 700:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(7))]})

    recorded = _census(
        tmp_path, _linear(), lambda parameters: torch.optim.SGD(parameters, lr=0.01), steps=1010, between=between
    )
    assert [0, 499, 999] == [step for step, _ in recorded]
    assert [{"float32": 15}, {"bfloat16": 15}, {"bfloat16": 15, "float32": 7}] == [
        data["parameters"] for _, data in recorded
    ]


def test_state_that_was_loaded_in_another_dtype_is_told(tmp_path: Path) -> None:
    saved = _adamw(list(_linear().parameters()))

    def between(step: int, model: Any, optimizer: Any) -> None:
        if step == 1:
            saved.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            model.to(torch.bfloat16)
            optimizer.load_state_dict(saved.state_dict())

    recorded = _census(tmp_path, _linear(), between=between)
    assert [(0, {}), (0, {"float32": 30}), (1, {"bfloat16": 30})] == [(step, data["state"]) for step, data in recorded]


def test_a_state_that_is_loaded_is_told_with_what_it_holds(tmp_path: Path) -> None:
    model = _linear()
    optimizer = _adamw(list(model.parameters()))
    saved = copy.deepcopy(optimizer.state_dict())
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    optimizer.load_state_dict(saved)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run.close()
    emitted = [event.data for event in events(stream(run.id, tmp_path)[1], "optimizer.restored")]
    assert [({}, {}), ({"float32": 30}, {"float32": 30})] == [(data["state"], data["saved"]) for data in emitted]
    assert ["AdamW", "AdamW"] == [data["optimizer"] for data in emitted]


def test_a_usual_run_tells_it_twice_and_a_light_one_too(tmp_path: Path) -> None:
    for preset in ("default", "light"):
        frames = stream(train(Recipe(steps=550), watched=True, dir=tmp_path, preset=preset).run, tmp_path)[1]
        assert 2 == len(events(frames, "weights.census"))
