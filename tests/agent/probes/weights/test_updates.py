"""Readings of updates agree with float64, whatever the parameters and optimizers are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.fsdp

import ammeter
from ammeter.probes.weights.updates import READINGS_PER_TURN
from ammeter.wire.columns import View, measured
from tests.agent.probes.weights.reference import MODELS, OPTIMIZERS, compare, equal, every_step, follow
from tests.agent.training import Model, events, stream


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_what_a_step_did_agrees_with_float64(model: str, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(len(model) + len(kind))
    rows, _, reference = follow(tmp_path, MODELS[model]().to(dtype), OPTIMIZERS[kind])
    compare(rows, reference, range(12))
    assert [0.0] * 12 == rows.scalar("weights_nonfinite").tolist()


@pytest.mark.parametrize("kind", ["sgd", "adamw", "fused"])
def test_a_skipped_step_says_nothing_of_updates(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    spoiled = {4: math.inf, 7: math.nan}
    rows, _, reference = follow(
        tmp_path, Model(), OPTIMIZERS[kind], scaler=scaler, spoil=lambda step: spoiled.get(step, 1.0)
    )
    assert [4, 7] == [step for step in range(12) if rows.scalar("skipped")[step]]
    for step in spoiled:
        for name in ("lost_updates", "update_ratio", "grad_agreement"):
            assert not measured(rows.scalar(name)[step])
        for stat in ("update.lost", "update.ratio", "grad.agreement"):
            assert not measured(np.ascontiguousarray(rows.stat(stat)[:, step])).any()
    assert not measured(rows.scalar("lost_updates")[[4, 7]]).any()
    compare(rows, reference, range(4))
    for step in (5, 6, 8, 9, 10, 11):
        for name in ("update_ratio", "lost_updates"):
            equal(reference.totals[step][name], rows.scalar(name)[step], rel=2e-4)
        for at, expected in enumerate(reference.rows[step]["ratio"]):
            equal(expected, rows.stat("update.ratio")[at][step], rel=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_updates_that_a_precision_cannot_hold_are_lost(dtype: torch.dtype, tmp_path: Path) -> None:
    """1 + 0.0001 is 1 in half precision, and is not in float32."""
    weight = torch.nn.Parameter(torch.ones(100, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    run = ammeter.watch(torch.nn.ParameterList([weight]), optimizer, dir=tmp_path)
    every_step(run)
    for _ in range(5):
        weight.grad = torch.ones_like(weight)
        weight.grad[:25] = 0
        optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    expected = 1.0 if dtype in (torch.bfloat16, torch.float16) else 0.0
    assert [expected] * 5 == rows.scalar("lost_updates").tolist() == rows.stat("update.lost")[0].tolist()
    equal(0.0 if expected else 1e-4 * math.sqrt(0.75), rows.scalar("update_ratio")[0], rel=1e-3)
    assert [1.0] * 4 == pytest.approx(rows.scalar("grad_agreement")[1:].tolist())


def test_a_step_that_means_nothing_loses_nothing(tmp_path: Path) -> None:
    """A learning rate of zero, as a number or a tensor, a gradient of zero, none at all, and a weight that is zero."""
    still, slow, quiet, unused, zero = (
        torch.nn.Parameter(torch.full((8,), value)) for value in (1.0, 1.0, 1.0, 1.0, 0.0)
    )
    groups: list[Any] = [
        {"params": [still], "lr": 0.0},
        {"params": [slow], "lr": torch.tensor(0.0)},
        {"params": [quiet, unused, zero], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, foreach=False)
    run = ammeter.watch(torch.nn.ParameterList([still, slow, quiet, unused, zero]), optimizer, dir=tmp_path)
    every_step(run)
    for _ in range(2):
        for parameter in (still, slow, zero):
            parameter.grad = torch.ones_like(parameter)
        quiet.grad = torch.zeros_like(quiet)
        optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert [False, False, False, False, True] == measured(rows.stat("update.lost")[:, 0]).tolist()
    assert [True, True, True, False, False] == measured(rows.stat("update.ratio")[:, 0]).tolist()
    assert [0.0, 0.0, 0.0] == rows.stat("update.ratio")[:3, 0].tolist()
    assert 0.0 == rows.scalar("lost_updates")[0]


def test_an_update_of_one_element_in_a_large_tensor_is_in_its_place(tmp_path: Path) -> None:
    """Another share of a tensor's elements is read, so large and small tensors weigh by what they stand for."""
    large, small = torch.nn.Parameter(torch.ones(300, 200)), torch.nn.Parameter(torch.ones(10))
    optimizer = torch.optim.SGD([large, small], lr=1e-12)
    run = ammeter.watch(torch.nn.ParameterList([large, small]), optimizer, dir=tmp_path)
    every_step(run)
    large.grad, small.grad = torch.ones_like(large), torch.full_like(small, 1e9)
    optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [1.0, 0.0] == rows.stat("update.lost")[:, 0].tolist()
    assert 60_000 / 60_010 == pytest.approx(float(rows.scalar("lost_updates")[0]))


def _restored(tmp_path: Path, part: slice, steps: int) -> View:
    """Trains a large weight, a part of which the program puts back after each step."""
    weight = torch.nn.Parameter(torch.ones(60_000))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    run = ammeter.watch(torch.nn.ParameterList([weight]), optimizer, dir=tmp_path)
    every_step(run)
    kept = weight.detach()[part].clone()

    def restore(*_: Any) -> None:
        weight.data[part] = kept

    optimizer.register_step_post_hook(restore)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    run.close()
    return stream(run.id, tmp_path)[0]


def test_a_small_part_that_no_step_changes_is_met_in_one_of_the_turns(tmp_path: Path) -> None:
    rows = _restored(tmp_path, slice(30_100, 30_180), READINGS_PER_TURN * 16)
    lost = rows.stat("update.lost")[0]
    assert 0 == lost[0]
    assert 0 < lost.max() < 0.05
    assert len(rows) == np.isfinite(lost).sum()


def test_only_a_change_of_turns_has_no_agreement_of_gradients(tmp_path: Path) -> None:
    rows = _restored(tmp_path, slice(0, 1), 3 * READINGS_PER_TURN)
    missing = [step for step in range(len(rows)) if not measured(rows.scalar("grad_agreement")[step : step + 1])[0]]
    assert [0, READINGS_PER_TURN, 2 * READINGS_PER_TURN] == missing


def _sparse(parameters: Any) -> Any:
    return torch.optim.SparseAdam(list(parameters), lr=0.1)


STRANGE: dict[str, tuple[Callable[[], torch.nn.Module], Callable[..., Any]]] = {
    "sparse": (lambda: torch.nn.Embedding(10, 4, sparse=True), _sparse),
    "complex": (
        lambda: torch.nn.ParameterList([torch.nn.Parameter(torch.ones(6, dtype=torch.complex64))]),
        OPTIMIZERS["adamw"],
    ),
    "float64": (lambda: torch.nn.Linear(3, 2).double(), OPTIMIZERS["adam"]),
    "mixed": (lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2).double()), OPTIMIZERS["adam"]),
    "empty": (lambda: torch.nn.ParameterList([torch.nn.Parameter(torch.ones(0))]), OPTIMIZERS["sgd"]),
    "channels last": (lambda: torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last), OPTIMIZERS["adam"]),  # type: ignore[call-overload]
    "frozen": (lambda: torch.nn.Linear(3, 2).requires_grad_(False), OPTIMIZERS["sgd"]),
}


@pytest.mark.parametrize("name", STRANGE)
def test_any_kind_of_parameter_is_read_or_left_out_without_a_fault(name: str, tmp_path: Path) -> None:
    def train(watched: bool) -> tuple[list[Any], View | None]:
        torch.manual_seed(0)
        make, optimize = STRANGE[name]
        model = make()
        optimizer = optimize(model.parameters())
        run = ammeter.watch(model, optimizer, dir=tmp_path) if watched else ammeter.Run()
        if watched:
            every_step(run)
        for step in range(4):
            for parameter in model.parameters():
                if name == "sparse":
                    rows = torch.tensor([[step, step + 3]])
                    parameter.grad = torch.sparse_coo_tensor(rows, torch.randn(2, 4), (10, 4), check_invariants=True)
                elif parameter.requires_grad:
                    parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        run.close()
        found, frames = stream(run.id, tmp_path) if watched else (None, [])
        assert [] == events(frames, "probe.failed")
        return [parameter.tolist() for parameter in model.parameters()], found

    bare, (weights, rows) = train(False)[0], train(True)
    assert bare == weights
    assert rows is not None
    assert (name != "empty") == bool(measured(rows.stat("weight.norm")[:, 0]).all())
    assert (name in ("complex", "float64", "mixed", "channels last")) == bool(
        measured(rows.scalar("lost_updates")[:1]).all()
    )


def test_parameters_that_are_exchanged_added_or_gone_are_read_as_they_are(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    every_step(run)

    def step() -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.full((5,), 2.0))]})
    step()
    optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.full((7, 2), 3.0))
    step()
    model.double()
    step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    norms = rows.stat("weight.norm")
    assert [True, True, False, False] == measured(norms[0]).tolist()
    assert [False, True, True, True] == measured(norms[2]).tolist()
    assert [False, False, True, True] == measured(norms[3]).tolist()
    assert math.sqrt(14) * 2.9 == pytest.approx(norms[3][2])
    assert math.sqrt(5) * 1.8 == pytest.approx(norms[2][2])


def test_two_optimizers_and_l_bfgs_are_read_each_by_itself(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, two = torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)
    first, second = torch.optim.LBFGS(one.parameters(), lr=0.1, max_iter=3), torch.optim.SGD(two.parameters(), lr=0.1)
    run = ammeter.watch([one, two], [first, second], dir=tmp_path)
    every_step(run)
    x = torch.randn(5, 4)

    def closure() -> torch.Tensor:
        first.zero_grad()
        second.zero_grad()
        loss: torch.Tensor = two(one(x)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(4):
        before = [tensor.detach().double().clone() for tensor in (*one.parameters(), *two.parameters())]
        first.step(closure)  # type: ignore[no-untyped-call]
        second.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    after = [*one.parameters(), *two.parameters()]
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        expected = float((new.detach().double() - old).norm() / old.norm())
        assert expected == pytest.approx(float(rows.stat("update.ratio")[at][3]), rel=1e-4)


def test_an_optimizer_that_raises_leaves_nothing_open(tmp_path: Path) -> None:
    class Broken(torch.optim.SGD):
        broken = True

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                raise RuntimeError("of the program's own")
            return super().step(closure)

    model = torch.nn.Linear(2, 2)
    optimizer = Broken(model.parameters(), lr=0.5)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    every_step(run)
    for broken in (True, False):
        optimizer.broken = broken
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        if broken:
            with pytest.raises(RuntimeError, match="of the program's own"):
                optimizer.step()
        else:
            optimizer.step()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    assert [] == events(frames, "probe.failed")
    assert 0.0 == rows.scalar("lost_updates")[-1]


@pytest.mark.parametrize(("gradient", "nonfinite"), [(1e25, 0), (math.inf, 8), (math.nan, 8)])
def test_a_change_without_a_finite_square_leaves_the_ratio_of_all_weights_open(
    gradient: float, nonfinite: int, tmp_path: Path
) -> None:
    """The ratio of the other weights would be stated as that of all."""
    usual, huge = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    optimizer = torch.optim.SGD([usual, huge], lr=1.0)
    run = ammeter.watch(torch.nn.ParameterList([usual, huge]), optimizer, dir=tmp_path)
    every_step(run)
    for step in range(4):
        usual.grad, huge.grad = torch.full((8,), 1e-3), torch.full((8,), gradient if step == 2 else 1e-3)
        optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [True, True, False] == measured(rows.scalar("update_ratio"))[:3].tolist()
    assert nonfinite == rows.scalar("weights_nonfinite")[2]
