from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.fsdp

import ammeter
from ammeter.recording.schedule import budget as schedule
from ammeter.wire.columns import View, measured
from tests.agent.probes.weights.reference import MODELS, OPTIMIZERS, every_step
from tests.agent.training import Model, Recipe, events, stream, train


def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    every = (math.inf,) * 4
    monkeypatch.setitem(schedule.PRESETS, "default", lambda budget: every)


RECIPES = {
    "fp16, clip": Recipe(clip=0.5),
    "fp16, overflows": Recipe(spoil=lambda step, loss: loss * (math.inf if step % 7 == 3 else 1)),
    "fp16, accumulation": Recipe(accumulate=3, optimizer="sgd"),
    "bf16": Recipe(precision="bf16", seed=4),
    "fp32, poisoned": Recipe(precision="fp32", spoil=lambda step, loss: loss * (math.nan if step == 30 else 1)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_reading_at_every_step_changes_no_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _always(monkeypatch)
    bare, watched = (
        train(RECIPES[name], watched=is_watched, **({"dir": tmp_path} if is_watched else {}))
        for is_watched in (False, True)
    )
    assert bare.state == watched.state
    rows, frames = stream(watched.run, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert measured(rows.scalar("update_ratio")).sum() >= 30


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_model_and_optimizer_ends_with_the_same_bits(
    model: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _always(monkeypatch)

    def run(watched: bool) -> list[Any]:
        torch.manual_seed(11)
        net = MODELS[model]()
        optimizer = OPTIMIZERS[kind](net.parameters())
        handle = ammeter.watch(net, optimizer, dir=tmp_path) if watched else ammeter.Run()
        for _ in range(6):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(torch.randn(8, 12)), torch.randint(3, (8,))).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        handle.close()
        return [*(tensor.tolist() for tensor in net.state_dict().values()), torch.get_rng_state().tolist()]

    assert run(False) == run(True)


def test_readings_come_in_pairs_of_neighbouring_steps(tmp_path: Path) -> None:
    """Whatever the budget allows, the agreement is that of two steps that follow each other."""
    torch.manual_seed(2)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    assert run._session is not None
    bucket = run._session.governor.weights
    allowed = {5, 9, 10, 20}
    step = -1
    bucket.allows = lambda: step in allowed  # type: ignore[method-assign]
    for step in range(25):  # noqa: B007 - the bucket reads it
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.randint(3, (8,))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [5, 6, 9, 10, 11, 20, 21] == np.flatnonzero(measured(rows.scalar("update_ratio"))).tolist()
    assert [6, 10, 11, 21] == np.flatnonzero(measured(rows.scalar("grad_agreement"))).tolist()


def test_the_budget_bounds_how_often_weights_are_read(tmp_path: Path) -> None:
    rows, _ = stream(train(Recipe(steps=400), watched=True, dir=tmp_path).run, tmp_path)
    assert 2 <= measured(rows.scalar("update_ratio")).sum() < 300


def test_a_light_watch_reads_no_weights(tmp_path: Path) -> None:
    rows, _ = stream(train(Recipe(steps=5), watched=True, dir=tmp_path, preset="light").run, tmp_path)
    assert not measured(rows.scalar("update_ratio")).any()


def test_no_tensor_of_the_program_is_kept_beyond_the_step(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    every_step(run)
    model(torch.randn(8, 12)).sum().backward()
    optimizer.step()
    gone = [weakref.ref(parameter) for parameter in model.parameters()] + [
        weakref.ref(parameter.grad) for parameter in model.parameters()
    ]
    del model, optimizer
    gc.collect()
    assert [] == [ref for ref in gone if ref() is not None]
    run.close()


def test_sharded_weights_are_read_by_the_local_shard(tmp_path: Path) -> None:
    def train(shard: Callable[[torch.nn.Module], Any]) -> tuple[list[Any], View]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
        shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run = ammeter.watch(model, optimizer, dir=tmp_path)
        every_step(run)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
        run.close()
        rows, frames = stream(run.id, tmp_path)
        assert [] == events(frames, "probe.failed")
        return [getattr(parameter, "_local_tensor", parameter).tolist() for parameter in model.parameters()], rows

    whole, expected = train(lambda model: model)
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        sharded, rows = train(lambda model: torch.distributed.fsdp.fully_shard(model))
    finally:
        torch.distributed.destroy_process_group()
    assert whole == sharded
    for stat in ("update.ratio", "update.lost", "weight.norm"):
        assert measured(rows.stat(stat)).all()
        assert expected.stat(stat).tolist() == rows.stat(stat).tolist()
