"""Scalers that are rebuilt, not restored, switched off or of no use, and who is told of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.healthy_programs.program import loss_of
from tests.agent.probes.call_order.mistakes import sgd
from tests.agent.training import Model, Seen, line_of, watching


def scaler(scale: float = 2.0**10, **options: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def train(model: Any, optimizer: Any, scales: Any, steps: int, dtype: torch.dtype = torch.float16) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            output = model(torch.randn(8, 12))
        scales.scale(output.float().square().mean()).backward()
        scales.step(optimizer)
        scales.update()


def only(seen: Seen, kind: str) -> dict[str, Any]:
    usage = seen.usage()
    assert [kind] == list(usage)
    assert 1 == len(seen.events(f"usage.{kind}"))
    return usage[kind]


@pytest.mark.parametrize("given", [True, False], ids=["the first one is given", "none is given"])
def test_a_scaler_for_each_epoch_is_told(given: bool, tmp_path: Path) -> None:
    model, scales = Model(), scaler(growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales if given else None) as seen:
        for epoch in range(3):
            if epoch:
                scales = scaler(growth_interval=2)
            train(model, optimizer, scales, 5)
    data = only(seen, "scaler_rebuilt")
    assert ("SGD", 1024.0, 4096.0) == (data["optimizer"], data["scale"], data["scale_before"])
    assert data["caller"].endswith(line_of(train, "scales.step"))
    assert [5] == [event.step for event in seen.events("usage.scaler_rebuilt")]


def test_a_new_scaler_that_begins_where_the_last_one_was_is_not_told(tmp_path: Path) -> None:
    model, scales = Model(), scaler(growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(3):
            train(model, optimizer, scales, 4)
            scales = scaler(scales.get_scale(), growth_interval=2)
    assert {} == seen.usage()


def test_a_new_scaler_at_the_first_scale_is_told_only_once_it_loses_a_scale(tmp_path: Path) -> None:
    model, scales = Model(), scaler(growth_interval=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for steps in (3, 3, 5, 3):
            train(model, optimizer, scales, steps)
            scales = scaler(growth_interval=4)
    assert (1024.0, 2048.0) == (only(seen, "scaler_rebuilt")["scale"], seen.usage()["scaler_rebuilt"]["scale_before"])
    assert [11] == [event.step for event in seen.events("usage.scaler_rebuilt")]


def resumed(kind: Any) -> tuple[Any, Any, Any, Any]:
    """A model and an optimizer that have trained before, and the state of that optimizer and of its scaler."""
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer = kind(model.parameters())
    train(model, optimizer, scales, 6)
    return model, optimizer, copy.deepcopy(optimizer.state_dict()), scales.state_dict()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
@pytest.mark.parametrize("when", ["before watch()", "after watch()"])
def test_a_resumed_optimizer_with_a_scaler_that_was_not_restored_is_told(kind: Any, when: str, tmp_path: Path) -> None:
    model, _, state, _ = resumed(kind)
    optimizer, scales = kind(model.parameters()), torch.amp.GradScaler("cpu")
    if when == "before watch()":
        optimizer.load_state_dict(state)
    with watching(tmp_path, model, optimizer, scales) as seen:
        if when == "after watch()":
            optimizer.load_state_dict(state)
        train(model, optimizer, scales, 4)
    data = only(seen, "scaler_not_restored")
    assert (kind.__name__, 6, 65536.0) == (data["optimizer"], data["optimizer_steps"], data["scale"])
    here = test_a_resumed_optimizer_with_a_scaler_that_was_not_restored_is_told
    line = (
        line_of(train, "scales.step") if when == "before watch()" else line_of(here, "            optimizer.load_state")
    )
    assert data["caller"].endswith(line)


def test_a_first_scale_of_the_programs_own_may_have_been_restored_before_watch(tmp_path: Path) -> None:
    model, _, state, _ = resumed(torch.optim.AdamW)
    optimizer, scales = torch.optim.AdamW(model.parameters()), scaler(512.0)
    optimizer.load_state_dict(state)
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(model, optimizer, scales, 4)
    assert {} == seen.usage()


@pytest.mark.parametrize("first", ["optimizer", "scaler"])
def test_a_scaler_that_is_restored_while_watched_is_not_told(first: str, tmp_path: Path) -> None:
    model, _, state, counted = resumed(torch.optim.AdamW)
    optimizer, scales = torch.optim.AdamW(model.parameters()), scaler()
    with watching(tmp_path, model, optimizer, scales) as seen:
        for part in ("optimizer", "scaler") if first == "optimizer" else ("scaler", "optimizer"):
            if part == "optimizer":
                optimizer.load_state_dict(state)
            else:
                scales.load_state_dict(counted)
        train(model, optimizer, scales, 4)
    assert {} == seen.usage()


def test_an_optimizer_that_has_trained_with_this_scaler_before_watch_is_not_told(tmp_path: Path) -> None:
    model, scales = Model(), scaler(65536.0 / 64)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, scales, 3)
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(model, optimizer, scales, 3)
    assert {} == seen.usage()


@pytest.mark.parametrize("on_purpose", [False, True])
def test_a_scaler_that_is_switched_off_below_float16_is_told(on_purpose: bool, tmp_path: Path) -> None:
    model = Model()
    if on_purpose:
        scales: Any = scaler(enabled=False)
    else:
        with pytest.warns(UserWarning, match="CUDA is not available"):
            scales = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(model, optimizer, scales, 4)
    usage = seen.usage()
    assert {"scaler_disabled", "fp16_without_scaler"} == set(usage)
    data = usage["scaler_disabled"]
    assert ("cpu" if on_purpose else "cuda", ["cpu"]) == (data["device"], data["autocast"])
    assert data["caller"].endswith(line_of(train, "scales.scale"))


def test_an_enabled_scaler_with_bfloat16_is_told(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(model, optimizer, scales, 4, torch.bfloat16)
    data = only(seen, "scaler_with_bf16")
    assert data["caller"].endswith(line_of(train, "scales.scale"))
    assert 1024.0 == data["scale"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_an_enabled_scaler_with_bfloat16_in_a_compiled_model_is_told(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        train(torch.compile(model, backend="aot_eager"), optimizer, scales, 4, torch.bfloat16)
    torch._dynamo.reset()
    only(seen, "scaler_with_bf16")


def test_bfloat16_beside_float16_is_not_told(tmp_path: Path) -> None:
    model, other, scales = Model(), Model(), scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                other(torch.randn(8, 12))
            train(model, optimizer, scales, 1)
    assert {} == seen.usage()


def test_a_loss_that_the_program_multiplied_by_the_scale_itself_is_scaled(tmp_path: Path) -> None:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    scales.scale(torch.ones(()))
    with watching(tmp_path, model, optimizer, scales) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            (loss_of(model) * scales.get_scale()).backward()
            scales.step(optimizer)
            scales.update()
    assert {} == seen.usage()
