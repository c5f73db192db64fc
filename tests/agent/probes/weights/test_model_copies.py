from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.wire.columns import View, measured
from tests.agent.training import Model, events, stream

Update = Callable[[torch.nn.Module, torch.nn.Module], None]


@torch.no_grad()
def _lerp(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    for mine, weight in zip(average.parameters(), model.parameters(), strict=True):
        mine.lerp_(weight.to(mine.dtype), 1 - decay)


def _through_data(average: torch.nn.Module, model: torch.nn.Module, decay: float) -> None:
    for mine, weight in zip(average.parameters(), model.parameters(), strict=True):
        mine.data.mul_(decay).add_(weight.data.to(mine.dtype), alpha=1 - decay)


def _run(
    folder: Path,
    make: Callable[[torch.nn.Module], torch.nn.Module],
    update: Update,
    steps: int = 50,
    known: bool = True,
) -> View:
    """The rows of a run that keeps an average of its weights, read at every step."""
    torch.manual_seed(5)
    model = Model()
    average = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = ammeter.watch(model, optimizer, dir=folder, also={"ema": average} if known else None)
    assert run._session is not None
    run._session.governor.weights.share = math.inf
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        update(average, model)
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows


def _lost(rows: View, prefix: str = "ema.") -> dict[str, Any]:
    """By tensor of the copy, what was measured of its lost updates. A bias before BatchNorm does not train."""
    found = {}
    for at, tensor in enumerate(rows.schema.tensors):
        if tensor.name.startswith(prefix) and tensor.name != f"{prefix}first.bias":
            lost = rows.stat("update.lost")[at]
            found[tensor.name] = lost[measured(lost)]
    return found


def _names(prefix: str) -> set[str]:
    return {f"{prefix}{name}" for name, _ in Model().named_parameters() if name != "first.bias"}


def test_a_copy_in_float32_moves(tmp_path: Path) -> None:
    lost = _lost(_run(tmp_path, copy.deepcopy, lambda average, model: _lerp(average, model, 0.9)))
    assert _names("ema.") == set(lost)
    assert all(len(shares) > 40 and shares[-1] == 0 for shares in lost.values())


@pytest.mark.parametrize("update", [_lerp, _through_data])
def test_a_copy_whose_precision_is_too_low_never_moves(update: Any, tmp_path: Path) -> None:
    rows = _run(
        tmp_path, lambda model: copy.deepcopy(model).to(torch.bfloat16), lambda *both: update(*both, decay=0.9999)
    )
    lost = _lost(rows)
    for name in ("first.weight", "middle.weight", "last.weight"):
        assert len(lost[f"ema.{name}"]) >= 2
        assert (lost[f"ema.{name}"] > 0.95).all()  # all but those next to zero
    assert (lost["ema.norm.bias"] < 0.1).all()  # from zero even the smallest step counts


def test_how_far_a_copy_moves_is_said_of_it_alone(tmp_path: Path) -> None:
    kept: list[list[Any]] = []

    def update(average: torch.nn.Module, model: torch.nn.Module) -> None:
        _lerp(average, model, 0.5)
        kept.append([parameter.detach().double().numpy().copy() for parameter in average.parameters()])

    rows = _run(tmp_path, copy.deepcopy, update, steps=10)
    names = [tensor.name for tensor in rows.schema.tensors]
    for at, (name, _) in enumerate(Model().named_parameters()):
        ratio, norm = (rows.stat(stat)[names.index(f"ema.{name}")] for stat in ("update.ratio", "weight.norm"))
        for step in range(2, 10):  # before step 1 the copy is read for the first time
            old, new = kept[step - 2][at], kept[step - 1][at]
            assert np.linalg.norm(new) == pytest.approx(norm[step], rel=1e-5)
            assert np.linalg.norm(new - old) / np.linalg.norm(old) == pytest.approx(ratio[step], rel=1e-4)


def test_what_is_as_it_should_be_and_does_not_move_is_not_lost(tmp_path: Path) -> None:
    """The copy of a frozen layer, in whatever precision, is where its weight is."""

    def make(model: torch.nn.Module) -> torch.nn.Module:
        model.first.requires_grad_(False)
        return copy.deepcopy(model).to(torch.bfloat16)

    lost = _lost(_run(tmp_path, make, lambda average, model: _lerp(average, model, 0.5)))
    assert [] == lost["ema.first.weight"].tolist()
    assert len(lost["ema.last.weight"]) > 40


def test_a_copy_that_is_updated_now_and_then_is_compared_when_it_is(tmp_path: Path) -> None:
    step = 0

    def update(average: torch.nn.Module, model: torch.nn.Module) -> None:
        nonlocal step
        step += 1
        if step % 10 == 0:
            _lerp(average, model, 0.5)

    lost = _lost(_run(tmp_path, copy.deepcopy, update, steps=60))
    assert all(5 == len(shares) and (shares < 0.1).all() for shares in lost.values()), lost


def test_an_averaged_model_of_torchs_own_is_found_by_itself(tmp_path: Path) -> None:
    rows = _run(
        tmp_path,
        lambda model: torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mine, weight, _: mine.lerp(weight, 0.1)),
        lambda average, model: average.update_parameters(model),  # type: ignore[operator]
        known=False,
    )
    lost = _lost(rows, "averaged.")
    assert _names("averaged.") == set(lost)
    assert all(len(shares) > 40 and shares[-1] == 0 for shares in lost.values())


def test_an_average_of_another_model_is_left_alone(tmp_path: Path) -> None:
    other = torch.nn.Linear(2, 2)
    rows = _run(
        tmp_path,
        lambda _: torch.optim.swa_utils.AveragedModel(other),
        lambda average, _: average.update_parameters(other),  # type: ignore[operator]
        steps=5,
        known=False,
    )
    assert [name for name, _ in Model().named_parameters()] == [tensor.name for tensor in rows.schema.tensors]


def test_a_copy_that_shares_its_weights_with_the_model_or_is_gone_does_no_harm(tmp_path: Path) -> None:
    rows = _run(tmp_path, lambda model: model, lambda *_: None, steps=4)
    assert [] == [tensor.name for tensor in rows.schema.tensors if tensor.name.startswith("ema.")]
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = ammeter.watch(model, optimizer, dir=tmp_path, also={"gone": copy.deepcopy(model), "meta": Model().to("meta")})
    for _ in range(3):
        model(torch.randn(8, 12)).sum().backward()
        optimizer.step()
    run.close()
    assert [] == events(stream(run.id, tmp_path)[1], "probe.failed")


def test_a_copy_that_is_replaced_at_times_loses_no_update_between(tmp_path: Path) -> None:
    """As a target network. The readings before the first replacement show only that it does not change."""
    steps = iter(range(200))

    def replace_at_times(average: torch.nn.Module, model: torch.nn.Module) -> None:
        if next(steps) % 50 == 10:
            average.load_state_dict(model.state_dict())

    rows = _run(tmp_path, lambda model: copy.deepcopy(model).bfloat16(), replace_at_times, steps=150)
    trained = [at for at, tensor in enumerate(rows.schema.tensors) if tensor.name == "ema.last.weight"]
    lost = rows.stat("update.lost")[trained]
    assert 0 < (measured(lost)).sum()
    assert not (lost > 0.5).any()
