from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed.fsdp

import ammeter
from ammeter.recording import budget as schedule
from ammeter.tensors.slices import positions
from ammeter.wire.columns import View, measured
from tests.agent.training import Model, Recipe, events, stream, train

Array = npt.NDArray[np.float64]


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 64, 3)
        self.head = torch.nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.new_ones(len(x), 3, 6, 6) * x.mean(1)[:, None, None, None] + torch.linspace(-1, 1, 6).to(x.dtype)
        found: torch.Tensor = self.head(self.second(self.norm(self.first(x)).relu()).mean((2, 3)))
        return found


class Attention(torch.nn.Module):
    """A layer whose weights have more elements than are read."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = torch.nn.Linear(12, 64)
        self.block = torch.nn.TransformerEncoderLayer(64, 4, 100, dropout=0.1, batch_first=True)
        self.head = torch.nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.block(self.inward(x[:, None, :]))[:, 0])
        return found


MODELS: dict[str, Callable[[], torch.nn.Module]] = {"mlp": Model, "cnn": Convolutions, "transformer": Attention}

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}


class Reference:
    """What each step did to the weights, all in float64 and of the elements that a slice has."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.rows: list[dict[str, list[float]]] = []
        self.totals: list[dict[str, float]] = []
        self._gradients: list[Array | None] = []

    def step(self, step: Callable[[], None]) -> None:
        before, gradients = self._weights(), [_slice(each.grad) for each in self.model.parameters()]
        step()
        self._row(before, self._weights(), [None if each is None else each for each in gradients])
        self._gradients = gradients

    def _weights(self) -> list[Array]:
        return [found for each in self.model.parameters() if (found := _slice(each)) is not None]

    def _row(self, before: list[Array], after: list[Array], gradients: list[Array | None]) -> None:
        earlier = self._gradients or [None] * len(before)
        stands = [each.numel() / min(each.numel(), 4096) for each in self.model.parameters()]
        row: dict[str, list[float]] = {name: [] for name in ("norm", "ratio", "lost", "agreement")}
        sums = np.zeros(7)
        for old, new, slope, last, share in zip(before, after, gradients, earlier, stands, strict=True):
            row["norm"].append(float(np.linalg.norm(new)))
            meant = np.zeros(old.shape, bool) if slope is None else slope != 0
            same = meant & (old == new)
            moved, size = float(((new - old) ** 2).sum()), float((old**2).sum())
            row["ratio"].append(math.sqrt(moved / size) if slope is not None and size else math.nan)
            row["lost"].append(float(same.sum() / meant.sum()) if meant.any() else math.nan)
            lengths = (slope @ slope) * (last @ last) if slope is not None and last is not None else 0.0
            row["agreement"].append(float(slope @ last / math.sqrt(lengths)) if lengths else math.nan)  # type: ignore[operator]
            counted = slope is not None and size > 0
            sums[:2] += share * np.array([moved, size]) * counted
            sums[2:4] += share * np.array([same.sum(), meant.sum()])
            if lengths and slope is not None and last is not None:
                sums[4:] += share * np.array([slope @ last, slope @ slope, last @ last])
        self.rows.append(row)
        self.totals.append(
            {
                "update_ratio": math.sqrt(sums[0] / sums[1]),
                "lost_updates": sums[2] / sums[3],
                "grad_agreement": sums[4] / math.sqrt(sums[5] * sums[6]) if sums[5] else math.nan,
            }
        )


def _slice(tensor: torch.Tensor | None) -> Array | None:
    if tensor is None:
        return None
    flat: Array = tensor.detach().double().reshape(-1).numpy()
    return flat[positions(flat.size)].copy()


def _every_step(run: ammeter.Run) -> None:
    assert run._session is not None
    run._session.governor.weights.share = math.inf


def _follow(
    folder: Path,
    model: torch.nn.Module,
    make: Callable[..., Any],
    steps: int = 12,
    scaler: Any = None,
    spoil: Callable[[int], float] = lambda step: 1.0,
) -> tuple[View, list[Any], Reference]:
    optimizer = make(model.parameters())
    run = ammeter.watch(model, optimizer, scaler, dir=folder)
    _every_step(run)
    reference = Reference(model)
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
            loss = torch.nn.functional.cross_entropy(
                model(torch.randn(8, 12).to(dtype)).float(), torch.randint(3, (8,))
            )
        loss = loss * spoil(step)
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
            reference.step(optimizer.step)
        else:
            scaler.scale(loss).backward()
            reference.step(lambda: scaler.step(optimizer))
            scaler.update()
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows, frames, reference


def _equal(expected: float, found: float, **tolerance: Any) -> None:
    if math.isnan(expected):
        assert not measured(np.array([found], np.float32)).any(), found
    else:
        assert expected == pytest.approx(float(found), **tolerance)


def _compare(rows: View, reference: Reference, steps: range) -> None:
    for stat, name in (
        ("weight.norm", "norm"),
        ("update.ratio", "ratio"),
        ("update.lost", "lost"),
        ("grad.agreement", "agreement"),
    ):
        for step in steps:
            for at, expected in enumerate(reference.rows[step][name]):
                _equal(expected, rows.stat(stat)[at][step], rel=2e-4, abs=1e-5)
    for name in ("update_ratio", "lost_updates", "grad_agreement"):
        for step in steps:
            _equal(reference.totals[step][name], rows.scalar(name)[step], rel=2e-4, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_what_a_step_did_agrees_with_float64(model: str, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(len(model) + len(kind))
    rows, _, reference = _follow(tmp_path, MODELS[model]().to(dtype), OPTIMIZERS[kind])
    _compare(rows, reference, range(12))
    assert [0.0] * 12 == rows.scalar("weights_nonfinite").tolist()


@pytest.mark.parametrize("kind", ["sgd", "adamw", "fused"])
def test_a_skipped_step_says_nothing_of_updates(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    spoiled = {4: math.inf, 7: math.nan}
    rows, _, reference = _follow(
        tmp_path, Model(), OPTIMIZERS[kind], scaler=scaler, spoil=lambda step: spoiled.get(step, 1.0)
    )
    assert [4, 7] == [step for step in range(12) if rows.scalar("skipped")[step]]
    for step in spoiled:
        for name in ("lost_updates", "update_ratio", "grad_agreement"):
            assert not measured(rows.scalar(name)[step])
        for stat in ("update.lost", "update.ratio", "grad.agreement"):
            assert not measured(np.ascontiguousarray(rows.stat(stat)[:, step])).any()
    assert not measured(rows.scalar("lost_updates")[[4, 7]]).any()
    _compare(rows, reference, range(4))
    for step in (5, 6, 8, 9, 10, 11):
        for name in ("update_ratio", "lost_updates"):
            _equal(reference.totals[step][name], rows.scalar(name)[step], rel=2e-4)
        for at, expected in enumerate(reference.rows[step]["ratio"]):
            _equal(expected, rows.stat("update.ratio")[at][step], rel=2e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_updates_that_a_precision_cannot_hold_are_lost(dtype: torch.dtype, tmp_path: Path) -> None:
    """1 + 0.0001 is 1 in half precision, and is not in float32."""
    weight = torch.nn.Parameter(torch.ones(100, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    run = ammeter.watch(torch.nn.ParameterList([weight]), optimizer, dir=tmp_path)
    _every_step(run)
    for _ in range(5):
        weight.grad = torch.ones_like(weight)
        weight.grad[:25] = 0
        optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    expected = 1.0 if dtype in (torch.bfloat16, torch.float16) else 0.0
    assert [expected] * 5 == rows.scalar("lost_updates").tolist() == rows.stat("update.lost")[0].tolist()
    _equal(0.0 if expected else 1e-4 * math.sqrt(0.75), rows.scalar("update_ratio")[0], rel=1e-3)
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
    _every_step(run)
    for _ in range(2):
        for each in (still, slow, zero):
            each.grad = torch.ones_like(each)
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
    _every_step(run)
    large.grad, small.grad = torch.ones_like(large), torch.full_like(small, 1e9)
    optimizer.step()
    run.close()
    rows, _ = stream(run.id, tmp_path)
    assert [1.0, 0.0] == rows.stat("update.lost")[:, 0].tolist()
    assert 60_000 / 60_010 == pytest.approx(float(rows.scalar("lost_updates")[0]))


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
            _every_step(run)
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
    _every_step(run)

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
    _every_step(run)
    x = torch.randn(5, 4)

    def closure() -> torch.Tensor:
        first.zero_grad()
        second.zero_grad()
        loss: torch.Tensor = two(one(x)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(4):
        before = [each.detach().double().clone() for each in (*one.parameters(), *two.parameters())]
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
    _every_step(run)
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
        train(RECIPES[name], watched=each, **({"dir": tmp_path} if each else {})) for each in (False, True)
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
        return [*(each.tolist() for each in net.state_dict().values()), torch.get_rng_state().tolist()]

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
    _every_step(run)
    model(torch.randn(8, 12)).sum().backward()
    optimizer.step()
    gone = [weakref.ref(each) for each in model.parameters()] + [weakref.ref(each.grad) for each in model.parameters()]
    del model, optimizer
    gc.collect()
    assert [] == [each for each in gone if each() is not None]
    run.close()


def test_sharded_weights_are_read_by_the_local_shard(tmp_path: Path) -> None:
    def train(shard: Callable[[torch.nn.Module], Any]) -> tuple[list[Any], View]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
        shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run = ammeter.watch(model, optimizer, dir=tmp_path)
        _every_step(run)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
        run.close()
        rows, frames = stream(run.id, tmp_path)
        assert [] == events(frames, "probe.failed")
        return [getattr(each, "_local_tensor", each).tolist() for each in model.parameters()], rows

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
