from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import guards
from tests.agent.guarded import Net, train


def loud(first: int, last: int = 10**6) -> Any:
    """From one step to another an activation passes 65504, whatever the scale."""

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        net.loud.gain = 2.0**18 if first <= step <= last else 1.0

    return before


@pytest.mark.parametrize("to", ["bfloat16", "float32"])
def test_an_overflow_that_no_scale_mends_is_left_for_another_dtype(to: str, tmp_path: Path) -> None:
    before = loud(10)
    bare = train(None, steps=60, before=before)
    guarded = train(tmp_path, [guards.Precision(to=to)], steps=60, before=before)
    assert not any(map(math.isfinite, bare.losses[10:]))
    assert [False, False, True] == [math.isfinite(loss) for loss in guarded.losses[10:13]]
    assert all(map(math.isfinite, guarded.losses[12:]))
    assert [("fell back", 11)] == guarded.actions()
    assert ("float16", to) == (guarded.acted[0]["from"], guarded.acted[0]["to"])
    healthy = train(None, steps=60)
    assert abs(sum(guarded.losses[-10:]) / sum(healthy.losses[-10:]) - 1) < 0.1


def test_one_module_in_float32_is_enough_and_the_program_needs_no_run_autocast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ammeter.Run, "autocast", lambda run, device, dtype: torch.autocast(device, dtype))
    dtypes: list[torch.dtype] = []

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        loud(10)(step, net, optimizer, scaler)
        if step == 0:
            for module in (net.first, net.loud.mix, net.last):
                module.register_forward_hook(lambda _, __, output: dtypes.append(output.dtype))

    guarded = train(tmp_path, [guards.Precision(module="loud")], steps=30, before=before)
    assert [torch.float16] * 3 == dtypes[:3]
    assert [torch.float16, torch.float32, torch.float16] == dtypes[-3:]
    assert all(map(math.isfinite, guarded.losses[15:]))
    assert ("loud", "float32") == (guarded.acted[0]["module"], guarded.acted[0]["to"])


def test_it_comes_back_after_good_steps_later_each_time_and_stays_after_the_last_try(tmp_path: Path) -> None:
    guard = guards.Precision(steady=6, returns=2)
    outcome = train(tmp_path, [guard], steps=80, before=loud(10))
    fell, came = "fell back", "came back"
    assert [(fell, 11), (came, 17), (fell, 19), (came, 31), (fell, 33)] == outcome.actions()


def test_an_overflow_of_the_backward_pass_alone_is_waited_for_until_the_fifth_skip(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 10:
            net.last.weight.register_hook(lambda gradient: torch.full_like(gradient, math.inf))

    outcome = train(tmp_path, [guards.Precision()], before=before)
    assert [("fell back", 14)] == outcome.actions()
    assert "5 steps in a row were skipped: the scale decreased, and no scale prevents it" == outcome.acted[0]["reason"]


class Normed(torch.nn.Module):
    """Its running statistics hear of every forward pass, also of a step that is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        self.gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.first(x) * self.gain))
        return found


def test_running_statistics_that_an_overflow_has_poisoned_begin_anew(tmp_path: Path) -> None:
    net = Normed()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    run = ammeter.watch(net, optimizer, scaler, dir=tmp_path, guards=[guards.Precision()])
    for step in range(20):
        net.gain = 2.0**18 if step >= 5 else 1.0
        optimizer.zero_grad()
        with run.autocast("cpu", torch.float16):
            loss = net(torch.randn(16, 6)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    run.close()
    assert net.norm.running_var is not None
    assert torch.isfinite(net.norm.running_var).all()
    net.eval()
    assert torch.isfinite(net(torch.randn(4, 6))).all()


def test_where_the_trouble_is_over_it_stays_in_float16(tmp_path: Path) -> None:
    guard = guards.Precision(module="loud", steady=6)
    outcome = train(tmp_path, [guard], steps=80, before=loud(10, 16))
    assert [("fell back", 11), ("came back", 17)] == outcome.actions()
    assert all(map(math.isfinite, outcome.losses[12:]))


def test_of_several_ranks_each_counts_skips_alone_for_their_losses_are_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [("fell back", 14)] == train(tmp_path, [guards.Precision()], before=loud(10)).actions()


def test_a_scaler_that_calibrates_is_no_trouble(tmp_path: Path) -> None:
    options: dict[str, Any] = {"scaler": {"init_scale": 2.0**30}}
    outcome = train(tmp_path, [guards.Precision()], **options)
    assert outcome.scales[8] < outcome.scales[0]
    assert [] == outcome.actions()
    assert train(None, **options).state == outcome.state


def test_a_program_that_does_not_enter_run_autocast_is_told_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ammeter.Run, "autocast", lambda run, device, dtype: torch.autocast(device, dtype))
    outcome = train(tmp_path, [guards.Precision()], before=loud(10))
    assert [("unable", 11)] == outcome.actions()
    assert outcome.acted[0]["reason"].endswith("the program does not enter run.autocast()")


def test_a_module_with_half_weights_is_left_alone(tmp_path: Path) -> None:
    net = Net()
    net.loud.mix.half()
    guard = guards.Precision(module="loud", patience=1)
    optimizer = torch.optim.SGD([*net.first.parameters(), *net.last.parameters()], lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    run = ammeter.watch(net, optimizer, scaler, dir=tmp_path, guards=[guard])
    for step in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = net(torch.ones(2, 6)).float().sum() * (math.inf if step > 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    run.close()
    assert not net.loud._forward_pre_hooks


def test_a_model_can_be_copied_and_pickled_meanwhile_and_its_hooks_are_gone_at_the_end(tmp_path: Path) -> None:
    seen: list[Net] = []

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        loud(10)(step, net, optimizer, scaler)
        seen.append(net)
        if step == 25:
            assert net.loud._forward_pre_hooks
            for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
                other.loud.gain = 1.0
                with torch.autocast("cpu", torch.float16):
                    assert torch.float16 == other.loud.mix(torch.ones(1, 16)).dtype
                    assert torch.float16 == other(torch.ones(1, 6)).dtype

    train(tmp_path, [guards.Precision(module="loud")], before=before)
    assert not seen[0].loud._forward_pre_hooks
    assert not seen[0].loud._forward_hooks


def test_a_module_that_raises_leaves_autocast_as_it_was(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        loud(10)(step, net, optimizer, scaler)
        if step == 25:
            with torch.autocast("cpu", torch.float16):
                with pytest.raises(RuntimeError):
                    net.loud(torch.ones(1, 3))
                assert torch.is_autocast_enabled("cpu")

    train(tmp_path, [guards.Precision(module="loud")], before=before)
    assert not torch.is_autocast_enabled("cpu")
