from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ammeter.preparation.contents import MAX_DEPTH, MAX_NODES, contents_of, contents_of_specs
from tests.agent.training import Model


def _parts() -> dict[str, Any]:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 12)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu")
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}


WEIGHTS = sum(parameter.numel() for parameter in Model().parameters()) + 2 * 24  # and the statistics of BatchNorm


def _found(saved: Any) -> dict[str, Any]:
    return contents_of(saved).plain()


def _nothing(**but: Any) -> dict[str, Any]:
    names = ("optimizer", "scaler", "scheduler", "rng", "progress")
    return {"weights": {}, **dict.fromkeys(names, False), "whole": True, **but}


def test_the_usual_checkpoint_is_known_by_its_structure_whatever_the_names() -> None:
    states = {f"part {at}": part.state_dict() for at, part in enumerate(_parts().values())}
    rest = {"global_step": 12, "rng_state": torch.get_rng_state(), "args": {"lr": 0.1}}
    expected = {
        "weights": {"float32": WEIGHTS},
        "optimizer": True,
        "scaler": True,
        "scheduler": True,
        "rng": True,
        "progress": True,
        "whole": True,
    }
    assert expected == _found({**states, **rest})
    assert expected == _found([{"a": {"b": states}}, rest])


def test_objects_are_known_as_their_states_are() -> None:
    parts = _parts()
    assert {"weights": {"float32": WEIGHTS - 2 * 24}} == {"weights": _found(parts["model"])["weights"]}
    assert _nothing(optimizer=True) == _found(parts["optimizer"])
    assert _nothing(scheduler=True) == _found([parts["scheduler"]])
    assert _nothing(scaler=True) == _found({"x": parts["scaler"]})
    assert _nothing() == _found({"x": torch.amp.GradScaler("cpu", enabled=False).state_dict()})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64"])
def test_weights_are_counted_by_dtype(dtype: str) -> None:
    saved = {"a": torch.ones(3, 4, dtype=getattr(torch, dtype)), "b": [torch.ones(5)], "ids": torch.arange(100)}
    assert {dtype: 12, "float32": 5} == _found(saved)["weights"]


@pytest.mark.parametrize(
    "saved",
    [
        {"rng": {"python": random.getstate()}},
        {"numpy_random_state": np.random.get_state()},
        [torch.get_rng_state()],
        {"cuda": [torch.zeros(16, dtype=torch.uint8)]},
        {"loader.generator_state": torch.zeros(44, dtype=torch.uint8)},
    ],
)
def test_states_of_generators_are_known(saved: Any) -> None:
    assert _nothing(rng=True) == _found(saved)


@pytest.mark.parametrize(
    "key", ["step", "epoch", "global_step", "iter_num", "current_epoch", "train.iteration", "steps"]
)
def test_a_number_is_progress_by_its_name(key: str) -> None:
    assert _nothing(progress=True) == _found({"meta": {key: 7}})
    assert _nothing(progress=True) == _found({key: torch.tensor(7)})


@pytest.mark.parametrize("key", ["stepsize", "batch_size", "lr", "seed", "best"])
def test_another_number_is_none(key: str) -> None:
    assert _nothing() == _found({key: 7})


def test_the_flat_optimizer_of_a_distributed_checkpoint_is_known() -> None:
    flat = {"state.head.weight.exp_avg": torch.ones(3), "param_groups.head.weight.lr": 0.1}
    assert _nothing(optimizer=True) == _found({"optim": flat})


def test_the_walk_is_bounded_in_width_depth_and_circles() -> None:
    wide = contents_of({str(at): torch.ones(2) for at in range(3 * MAX_NODES)})
    assert not wide.complete
    assert 2 * (MAX_NODES - 2) <= wide.weights["float32"] <= 2 * MAX_NODES
    deep: Any = torch.ones(2)
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    assert (False, 0) == (contents_of(deep).complete, contents_of(deep).weights["float32"])
    assert (True, 2) == (contents_of(deep[0]).complete, contents_of(deep[0]).weights["float32"])
    circle: dict[str, Any] = {"w": torch.ones(2)}
    circle["self"] = circle
    assert not contents_of(circle).complete
    assert _nothing() == _found({"losses": [0.5] * 100_000, "words": ["a"] * 100_000})


@pytest.mark.parametrize(
    "saved", [None, 3, "text", b"bytes", object(), {}, [], {"a": {1: None, None: 2}}, {(1, 2): {3}}]
)
def test_anything_can_be_saved(saved: Any) -> None:
    assert _nothing() == _found(saved)


def test_tensors_are_counted_as_safetensors_describes_them() -> None:
    """Older versions hand over dicts with torch's names, newer ones objects with names of their own."""
    old = {
        "a": {"dtype": "bfloat16", "shape": [2, 3], "data": b""},
        "ids": {"dtype": "int64", "shape": [9], "data": b""},
    }
    new = {"a": SimpleNamespace(dtype="BF16", shape=[2, 3]), "b": SimpleNamespace(dtype="F32", shape=[])}
    assert {"bfloat16": 6} == contents_of_specs(old).plain()["weights"]
    assert {"bfloat16": 6, "float32": 1} == contents_of_specs(new).plain()["weights"]
