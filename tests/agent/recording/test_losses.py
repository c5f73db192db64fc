"""The recorded loss is the loss of the batch, of each of several losses, or none: against what the program computed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import ammeter
from ammeter.torch_hooks import loss_graph, patch
from ammeter.wire.columns import View, measured
from tests.agent.training import events, stream

STEPS = 14
N = 4
Numbers = list[float]


def _network(outputs: int = 5) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, outputs))


def _batch(step: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 6, generator=generator)
    return x, torch.randint(0, 5, (rows,), generator=generator)


def _rows(run: ammeter.Run, folder: Path) -> View:
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows


def _columns(rows: View) -> list[str]:
    """Losses that were measured."""
    return [name for name in rows.schema.scalars if name.startswith("loss") and measured(rows.scalar(name)).any()]


def _mean(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y)


def _total(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y, reduction="sum")


def _squares(logits: Any, y: Any) -> Any:
    return (logits - functional.one_hot(y, 5)).square().sum(1).mean()


def _smooth(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y, label_smoothing=0.1)


def _weighted(logits: Any, y: Any) -> Any:
    return functional.cross_entropy(logits, y) + 0.25 * logits.square().mean()


CRITERIA = {"mean": _mean, "squares": _squares, "smoothed": _smooth, "with a penalty": _weighted}

DIVISIONS: dict[str, Callable[[Any], Any]] = {
    "not at all": lambda loss: loss,
    "by a number": lambda loss: loss / N,
    "by a factor": lambda loss: loss * (1 / N),
    "by a factor before it": lambda loss: (1 / N) * loss,
    "by a tensor": lambda loss: loss / torch.tensor(float(N)),
    "in place": lambda loss: (loss * 1).div_(N),
    "in two steps": lambda loss: (loss / 2 * 4) / 8,
    "each summand": lambda loss: 0.3 * loss / N + 0.7 * loss / N,
    "and reshaped": lambda loss: (loss / N).reshape(1).squeeze().float(),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("division", DIVISIONS)
def test_the_loss_of_accumulated_gradients_is_that_of_the_batch(
    division: str, criterion: str, scaled: bool, tmp_path: Path
) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = _batch(10 * step + part)
            loss = CRITERIA[criterion](model(x), y)
            losses.append(float(loss.detach()))
            scaler.scale(DIVISIONS[division](loss)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    rows = _rows(run, tmp_path)
    assert ["loss"] == _columns(rows)
    assert own == pytest.approx(rows.scalar("loss").tolist(), rel=1e-5)


def test_a_loss_divided_behind_scale_is_that_of_the_batch(tmp_path: Path) -> None:
    model = _network()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu")
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = _batch(10 * step + part)
            loss = _mean(model(x), y)
            losses.append(float(loss.detach()))
            (scaler.scale(loss) / N).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    assert own == pytest.approx(_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


def test_a_window_that_the_data_ends_in_is_undone_as_those_before(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for epoch in range(4):
        losses = Numbers()
        for part in range(2 * N + epoch):
            x, y = _batch(100 * epoch + part)
            loss = _mean(model(x), y)
            losses.append(float(loss.detach()))
            (loss / N).backward()
            if len(losses) == N or part == 2 * N + epoch - 1:
                optimizer.step()
                optimizer.zero_grad()
                own.append(sum(losses) / len(losses))
                losses.clear()
    rows = _rows(run, tmp_path)
    assert {1.0, 2.0, 3.0, 4.0} >= set(rows.scalar("micro_batches").tolist())
    assert own == pytest.approx(rows.scalar("loss").tolist(), rel=1e-5)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (2, 8, 5, 9)])
def test_a_sum_over_all_targets_of_the_batch_is_the_batchs_loss(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """As transformers has it: the number of targets is that of all micro-batches."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        total = 0.0
        for part, rows in enumerate(sizes):
            x, y = _batch(10 * step + part, rows)
            loss = _total(model(x), y)
            total += float(loss.detach())
            (loss / torch.tensor(sum(sizes))).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(total / sum(sizes))
    found = _rows(run, tmp_path)
    assert ["loss"] == _columns(found)
    assert own == pytest.approx(found.scalar("loss").tolist(), rel=1e-5)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (2, 8, 5, 9)])
def test_a_sum_over_the_targets_of_each_micro_batch_is_a_mean(
    sizes: tuple[int, ...], divided: bool, tmp_path: Path
) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part, rows in enumerate(sizes):
            x, y = _batch(10 * step + part, rows)
            loss = _total(model(x), y) / rows
            losses.append(float(loss.detach()))
            (loss / N if divided else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    found = _rows(run, tmp_path)
    assert ["loss"] == _columns(found)
    assert own == pytest.approx(found.scalar("loss").tolist(), rel=1e-5)


def test_micro_batches_weighted_by_their_size_are_one_loss(tmp_path: Path) -> None:
    model, sizes = _network(), (2, 8, 5, 9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        total = 0.0
        for part, rows in enumerate(sizes):
            x, y = _batch(10 * step + part, rows)
            loss = _mean(model(x), y) * (rows / sum(sizes))
            total += float(loss.detach())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(total)
    assert own == pytest.approx(_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


class Halved(torch.autograd.Function):
    """What it does with a loss does not stand in the graph."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss / N

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / N


UNKNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "a sum": _total,
    "a sum over something": lambda logits, y: _total(logits, y) / 11,
    "a function of the program's own": lambda logits, y: Halved.apply(_mean(logits, y)),  # type: ignore[no-untyped-call]
    "half": lambda logits, y: _mean(logits, y) / 2,
}


@pytest.mark.parametrize("spelling", UNKNOWN)
def test_what_nobody_can_know_is_not_called_the_loss(spelling: str, tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = _batch(10 * step + part)
            loss = UNKNOWN[spelling](model(x), y)
            losses.append(float(loss.detach()))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    rows = _rows(run, tmp_path)
    assert ["loss_backward"] == _columns(rows)
    assert own == pytest.approx(rows.scalar("loss_backward").tolist(), rel=1e-5)


def test_a_single_backward_pass_is_of_the_loss_whatever_it_was_divided_by(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(60):
        optimizer.zero_grad()
        x, y = _batch(step)
        loss = _total(model(x), y) / 2
        loss.backward()
        optimizer.step()
        own.append(float(loss.detach()))
    assert own == pytest.approx(_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


class _Head(torch.nn.Module):
    """Computes the loss itself, as where the logits are too many to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out, self.calls = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 5), 0

    def forward(self, x: Any, y: Any) -> Any:
        self.calls += 1
        return _total(self.out(self.norm(x)), y)


def _trained_in_a_checkpoint(folder: Path | None, divisor: float | torch.Tensor) -> tuple[int, list[float]]:
    """(calls of the head, the running mean of its norm)"""
    torch.manual_seed(0)
    head = _Head()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    run = ammeter.watch(head, optimizer, dir=folder) if folder else None
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            x, y = _batch(10 * step + part)
            (checkpoint(head, x.requires_grad_(), y, use_reentrant=False) / divisor).backward()
        optimizer.step()
    if run and folder:
        _rows(run, folder)
    mean: Any = head.norm.running_mean
    return head.calls, mean.tolist()


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("divisor", [8.0, torch.tensor(8.0)])
def test_a_block_that_is_computed_again_in_backward_is_so_no_more_often_for_us(
    tells: bool, divisor: float | torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_graph, "SAVED_TENSORS_EXPOSE_HOOKS", tells and loss_graph.SAVED_TENSORS_EXPOSE_HOOKS)
    monkeypatch.setattr(loss_graph, "_hooks_seen", False)
    before = patch.attached()
    assert _trained_in_a_checkpoint(None, divisor) == _trained_in_a_checkpoint(tmp_path, divisor)
    assert before == patch.attached()


def test_hooks_on_what_a_graph_saves_are_not_called_by_us(tmp_path: Path) -> None:
    called = []
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()

    def unpack(saved: Any) -> Any:
        called.append(torch._C._current_graph_task_id())
        return saved

    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = _batch(step)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            loss = _total(model(x), y) / torch.tensor(8.0)
        loss.backward()
        optimizer.step()
        own.append(float(loss.detach()))
    assert own == pytest.approx(_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)
    assert called
    assert -1 not in called


@pytest.mark.parametrize("criterion", [_mean, _total])
def test_a_second_backward_that_raises_costs_no_loss(criterion: Callable[..., Any], tmp_path: Path) -> None:
    """As of a program that tries again when memory was short."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = _batch(step)
        loss = criterion(model(x), y) / 2
        loss.backward()
        if step == 5:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        optimizer.step()
        own.append(float(loss.detach()))
    rows = _rows(run, tmp_path)
    by_line = [rows.scalar(name).tolist() for name in _columns(rows) if name != "loss"]
    assert own[6:] in [pytest.approx(losses[6:], rel=1e-5) for losses in by_line]


def test_classes_that_the_program_makes_in_each_step_are_let_go(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, made = ammeter.watch(model, optimizer, dir=tmp_path), []
    for step in range(STEPS):

        class Same(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, x: Any) -> Any:
                return x.clone()

            @staticmethod
            def backward(_: Any, grad: Any) -> Any:
                return grad

        made.append(weakref.ref(Same))
        optimizer.zero_grad()
        x, y = _batch(step)
        loss: Any = Same.apply(_mean(model(x), y))  # type: ignore[no-untyped-call]
        loss.backward()
        optimizer.step()
    del Same, loss
    _rows(run, tmp_path)
    gc.collect()
    assert [] == [ref for ref in made if ref() is not None]


def test_the_last_micro_batch_may_have_a_line_of_its_own(tmp_path: Path) -> None:
    """As where only the last one synchronises gradients."""
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = _batch(10 * step + part)
            loss = _mean(model(x), y)
            losses.append(float(loss.detach()))
            if part < N - 1:
                with nullcontext():
                    (loss / N).backward()
            else:
                (loss / N).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    rows = _rows(run, tmp_path)
    assert ["loss"] == _columns(rows)
    assert own == pytest.approx(rows.scalar("loss").tolist(), rel=1e-5)


def test_several_roots_of_one_backward_are_one_loss(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = _batch(step)
        one, other = _mean(model(x), y), _squares(model(x), y)
        torch.autograd.backward([one, other])
        optimizer.step()
        own.append(float(one.detach() + other.detach()))
    assert own == pytest.approx(_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


def test_evaluations_of_a_closure_behind_the_first_are_not_the_steps_loss(tmp_path: Path) -> None:
    model = _network()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            x, y = _batch(step)
            loss = _mean(model(x), y)
            loss.backward()
            return loss

        own.append(float(optimizer.step(closure).detach()))
    assert own == pytest.approx(_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


class Gan:
    """Two networks that take turns, and what each was trained on."""

    def __init__(self, scalers: int) -> None:
        torch.manual_seed(0)
        self.maker = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
        self.critic = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (self.critic, self.maker)]
        self.scalers = [torch.amp.GradScaler("cpu") for _ in range(scalers)]
        self.own: dict[str, Numbers] = {"real": [], "fake": [], "critic": [], "maker": []}

    def scaler(self, number: int) -> Any:
        off = torch.amp.GradScaler("cpu", enabled=False)
        return self.scalers[min(number, len(self.scalers) - 1)] if self.scalers else off

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(16, 6) + 1, self.maker(torch.randn(16, 4))

    def judged(self, name: str, x: torch.Tensor, target: float) -> Any:
        loss = functional.binary_cross_entropy_with_logits(self.critic(x), torch.full((16, 1), target))
        self.own[name].append(float(loss.detach()))
        return loss

    def of_both(self, real: torch.Tensor, fake: torch.Tensor) -> Any:
        loss = self.judged("real", real, 1.0) + self.judged("fake", fake.detach(), 0.0)
        self.own["critic"].append(float(loss.detach()))
        return loss


def _on_lines_of_their_own(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    (critic, maker), first, second = gan.optimizers, gan.scaler(0), gan.scaler(1)
    critic.zero_grad()
    first.scale(gan.of_both(real, fake)).backward()
    first.step(critic)
    if first is not second:
        first.update()
    maker.zero_grad()
    second.scale(gan.judged("maker", fake, 1.0)).backward()
    second.step(maker)
    second.update()


def _update(loss: Any, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def _through_one_line(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    for number in range(2):
        loss = gan.of_both(real, fake) if number == 0 else gan.judged("maker", fake, 1.0)
        _update(loss, gan.optimizers[number], gan.scaler(number))
        if number or len(gan.scalers) > 1:
            gan.scaler(number).update()


def _both_before_either_steps(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    for optimizer in gan.optimizers:
        optimizer.zero_grad()
    for number, loss in enumerate((gan.of_both(real, fake), gan.judged("maker", fake, 1.0))):
        gan.scaler(number).scale(loss).backward()
    for number, optimizer in enumerate(gan.optimizers):
        gan.scaler(number).step(optimizer)
    for scaler in gan.scalers:
        scaler.update()


def _the_critic_more_often(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    _update(gan.of_both(real, fake), gan.optimizers[0], gan.scaler(0))
    if step % 3 == 2:
        if len(gan.scalers) > 1:
            gan.scaler(0).update()
        _update(gan.judged("maker", fake, 1.0), gan.optimizers[1], gan.scaler(1))
        gan.scaler(1).update()
    else:
        gan.scaler(0).update()


def _real_and_fake_apart(gan: Gan, step: int) -> None:
    real, fake = gan.batch()
    (critic, maker), first, second = gan.optimizers, gan.scaler(0), gan.scaler(1)
    critic.zero_grad()
    first.scale(gan.judged("real", real, 1.0)).backward()
    first.scale(gan.judged("fake", fake.detach(), 0.0)).backward()
    first.step(critic)
    if first is not second:
        first.update()
    maker.zero_grad()
    second.scale(gan.judged("maker", fake, 1.0)).backward()
    second.step(maker)
    second.update()


@pytest.mark.parametrize("scalers", [0, 1, 2])
@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (_on_lines_of_their_own, ("critic", "maker")),
        (_through_one_line, ("critic", "maker")),
        (_both_before_either_steps, ("critic", "maker")),
        (_the_critic_more_often, ("critic", "maker")),
        (_real_and_fake_apart, ("real", "fake", "maker")),
    ],
)
def test_two_losses_are_two_columns_and_never_their_mean(
    turn: Callable[[Gan, int], None], expected: tuple[str, ...], scalers: int, tmp_path: Path
) -> None:
    gan = Gan(scalers)
    run = ammeter.watch([gan.critic, gan.maker], gan.optimizers, gan.scalers or None, dir=tmp_path)
    for step in range(12):
        turn(gan, step)
    rows = _rows(run, tmp_path)
    names = _columns(rows)
    assert all(name.startswith("loss@test_losses.py:") for name in names), names
    found = [rows.scalar(name)[measured(rows.scalar(name))] for name in names]
    assert len(expected) == len(found)
    for name, column in zip(expected, found, strict=True):
        np.testing.assert_allclose(gan.own[name], column, rtol=1e-5)


def test_two_losses_of_one_optimizer_are_two_columns_also_where_steps_are_short(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run, own, aside = ammeter.watch(model, optimizer, dir=tmp_path), Numbers(), Numbers()
    for step in range(1500):
        x, y = _batch(step % 7)
        optimizer.zero_grad()
        one = _mean(model(x), y)
        one.backward()
        other = _squares(model(x), y)
        other.backward()
        optimizer.step()
        own.append(float(one.detach()))
        aside.append(float(other.detach()))
    rows = _rows(run, tmp_path)
    assert not rows.scalar("calls_followed").all()
    first, second = _columns(rows)
    np.testing.assert_allclose(own, rows.scalar(first), rtol=1e-5)
    np.testing.assert_allclose(aside, rows.scalar(second), rtol=1e-5)


def test_a_loss_that_the_program_logs_is_the_loss(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(STEPS):
        x, y = _batch(step)
        for _ in range(2):
            _total(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step)
    assert list(map(float, range(STEPS))) == _rows(run, tmp_path).scalar("loss").tolist()


def test_backward_on_ever_new_lines_has_a_bounded_number_of_columns(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    x, y = _batch(0)
    for step in range(30):
        for number in range(2):
            code = compile("loss.backward()", f"made{step}_{number}.py", "exec")
            exec(code, {"loss": _mean(model(x), y)})
        optimizer.step()
        optimizer.zero_grad()
    assert 16 == len(_columns(_rows(run, tmp_path)))


@pytest.mark.parametrize("closure", [False, True])
def test_every_short_step_has_its_loss_to_the_last_one(closure: bool, tmp_path: Path) -> None:
    model = _network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(400):

        def evaluate(step: int = step) -> Any:
            x, y = _batch(step % 7)
            loss = _mean(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            own.append(float(loss.detach()))
            return loss

        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()
    np.testing.assert_allclose(own, _rows(run, tmp_path).scalar("loss"), rtol=1e-5)
