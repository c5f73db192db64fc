"""An optimizer that is built during a run is watched from its first use on, if it trains what the run trains."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, Seen, line_of, stream, watching


def step(model: Any, optimizer: Any, scaler: Any = None, clip: float | None = None) -> None:
    loss = model(torch.randn(8, 12)).square().mean()
    (loss if scaler is None else scaler.scale(loss)).backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()


def sgd(model: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-3, "momentum": 0.9, **options})


def rows(seen: Seen, folder: Path) -> Any:
    return stream(seen.run, folder)[0]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_new_optimizer_of_the_same_model_is_watched_from_its_first_step(scaled: bool, tmp_path: Path) -> None:
    model = Model()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if scaled else None
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer, scaler) as seen:
        for _ in range(3):
            step(model, optimizer, scaler)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            step(model, optimizer, scaler)
    view = rows(seen, tmp_path)
    assert [0, 1, 2, 3, 4, 5, 6] == view.steps.tolist()
    assert [1.0] * 7 == view.scalar("applied").tolist()
    (event,) = seen.events("optimizer.joined")
    here = test_a_new_optimizer_of_the_same_model_is_watched_from_its_first_step
    assert (3, "AdamW", True) == (event.step, event.data["optimizer"], event.data["replaces"])
    assert event.data["caller"].endswith(line_of(here, "torch.optim.AdamW"))
    assert [] == seen.events("probe.failed")


def test_a_new_optimizer_on_the_fast_path_is_watched_whenever_it_steps_first(tmp_path: Path) -> None:
    model = Model()
    first = sgd(model)
    with watching(tmp_path, model, first) as seen:
        for _ in range(150):
            step(model, first)
        second = sgd(model)
        for _ in range(100):
            step(model, first)
        for _ in range(5):
            step(model, second)
    assert 255 == len(rows(seen, tmp_path))
    assert [250] == [event.step for event in seen.events("optimizer.joined")]


def test_the_norm_of_a_first_step_that_was_clipped_before_it_was_watched_is_absent(tmp_path: Path) -> None:
    model = Model()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer) as seen:
        step(model, optimizer)
        optimizer = sgd(model)
        for _ in range(3):
            step(model, optimizer, clip=1e-3)
    norms = rows(seen, tmp_path).scalar("grad_norm").tolist()
    assert math.isnan(norms[1])
    assert all(norm > 1e-2 for norm in norms[2:])


def test_an_optimizer_of_another_model_is_not_watched(tmp_path: Path) -> None:
    model, other = Model(), Model()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer) as seen:
        stranger = sgd(other)
        for _ in range(3):
            step(other, stranger)
            step(model, optimizer)
    assert [] == seen.events("optimizer.joined")
    assert 3 == len(rows(seen, tmp_path))


def test_an_optimizer_that_was_there_and_not_passed_is_not_watched(tmp_path: Path) -> None:
    model = Model()
    optimizer, other = sgd(model), sgd(model)
    with watching(tmp_path, model, optimizer) as seen:
        step(model, other)
        step(model, optimizer)
    assert [] == seen.events("optimizer.joined")


class Around(torch.optim.Optimizer):
    """An optimizer that wraps another one, as those of ZeRO and accelerate do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        self.inner.step()


def test_a_wrapper_around_the_watched_optimizer_is_no_second_one(tmp_path: Path) -> None:
    model = Model()
    optimizer = sgd(model)
    with watching(tmp_path, model, optimizer) as seen:
        wrapper = Around(optimizer)
        for _ in range(3):
            step(model, wrapper)
    assert [] == seen.events("optimizer.joined")
    assert 3 == len(rows(seen, tmp_path))


def test_an_optimizer_that_replaces_the_restored_one_is_named(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    (tmp_path / "kept").mkdir(mode=0o700)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "kept" / "run.pt")
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(tmp_path, model, optimizer) as seen:
        state = torch.load(tmp_path / "kept" / "run.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            step(model, optimizer)
    finding = seen.findings()["resume-mismatch"]
    assert "the optimizer that loaded the state was replaced by the one of " in finding.cause
    assert "test_newcomers.py:" in finding.cause
