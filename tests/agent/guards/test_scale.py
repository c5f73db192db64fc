from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ammeter import guards
from tests.agent.guarded import Outcome, train
from tests.agent.training import Seen, watching

EAGER = {"init_scale": 2.0**16, "growth_interval": 1, "growth_factor": 4.0}
"""It grows fourfold after every good step: two of three are skipped for good."""


def skips(outcome: Outcome) -> int:
    return sum(after < before for before, after in zip(outcome.scales, outcome.scales[1:], strict=False))


def test_a_scale_that_keeps_growing_too_high_is_held_where_the_gradients_bear_it(tmp_path: Path) -> None:
    bare = train(None, steps=60, scaler=EAGER)
    guarded = train(tmp_path, [guards.Scale()], steps=60, scaler=EAGER)
    assert skips(bare) > 30
    assert skips(guarded) <= 4
    assert {action for action, _ in guarded.actions()} & {"backed off", "held"}


def test_a_scale_that_grows_into_an_overflow_now_and_then_is_left_alone(tmp_path: Path) -> None:
    """Every 26th step is lost, at most: that is how GradScaler finds its scale, and no storm."""
    calm = {"init_scale": 2.0**16, "growth_interval": 25}
    bare = train(None, steps=150, scaler=calm)
    guarded = train(tmp_path, [guards.Scale()], steps=150, scaler=calm)
    assert skips(bare) >= 4
    assert bare.state == guarded.state
    assert [] == guarded.acted


def test_once_it_grew_too_eagerly_it_leaves_a_margin_above_the_largest_gradient(tmp_path: Path) -> None:
    """Read before anybody clips: clipped to 0.001 they would seem to bear any scale."""
    eager = {"init_scale": 64.0, "growth_interval": 2}
    outcome = train(tmp_path, [guards.Scale(margin=8)], steps=60, scaler=eager, clip=1e-3)
    assert [("backed off", 30), ("held", 32)] == outcome.actions()
    assert [2.0**17, *[2.0**14] * 30] == outcome.scales[29:]
    assert "would leave less than a factor of 8 to 65504" in outcome.acted[1]["reason"]


def test_the_second_skip_in_a_row_quarters_the_scale_and_the_third_goes_to_what_was_borne(tmp_path: Path) -> None:
    """Gradients of about 1 were read; the program sets a scale of 2^24 by hand, at which all of them overflow."""

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 10:
            scaler._scale.fill_(2.0**24)

    bare = train(None, before=before)
    guarded = train(tmp_path, [guards.Scale()], before=before)
    assert [2.0**23, 2.0**22, 2.0**21] == bare.scales[10:13]
    assert [2.0**23, 2.0**21] == guarded.scales[10:12]
    assert guarded.scales[12] <= 2.0**16
    assert guarded.scales[12] == guarded.scales[-1]
    assert [("backed off", 11), ("backed off", 12)] == guarded.actions()
    assert {"guard": "scale", "from": 2.0**22, "to": 2.0**21, "step": 11} == {
        name: guarded.acted[0][name] for name in ("guard", "from", "to", "step")
    }


def test_a_scale_that_the_program_sets_where_no_step_can_work_goes_back_to_the_last_that_did(tmp_path: Path) -> None:
    for value in (2.0**-130, 0.0, math.inf, 2.0**40):

        def before(step: int, net: Any, optimizer: Any, scaler: Any, value: float = value) -> None:
            if step == 10:
                scaler._scale.fill_(value)

        guarded = train(tmp_path / str(value), [guards.Scale()], before=before)
        assert train(None).state == guarded.state
        assert [("restored", 9)] == guarded.actions()


def test_nothing_is_backed_off_for_nan_which_no_scale_mends_and_the_floor_holds(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 5:
            net.last.weight.register_hook(lambda gradient: torch.full_like(gradient, math.nan))

    bare, guarded = train(None, before=before), train(tmp_path, [guards.Scale(floor=16.0)], before=before)
    assert bare.scales[5:10] == guarded.scales[5:10]
    assert 1024 * 2.0**-25 == bare.scales[-1]
    assert 16.0 == guarded.scales[-1]
    assert [("held", 11)] == guarded.actions()  # told once
    assert "steps are still skipped" in guarded.acted[0]["reason"]


def test_an_inf_that_no_scale_mends_ends_at_the_floor_and_poisons_nothing(tmp_path: Path) -> None:
    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 5:
            net.last.weight.register_hook(lambda gradient: torch.full_like(gradient, math.inf))

    guarded = train(tmp_path, [guards.Scale()], steps=300, before=before)
    assert 1.0 == guarded.scales[-1]
    assert len(guarded.actions()) < 10


def test_what_the_program_sets_with_update_is_its_own_business(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with watching(tmp_path, net, optimizer, scaler, guards=[guards.Scale()]) as seen:
        for scale in (8.0, 4.0, 2.0, 1.0, 0.5):
            scaler.scale(net(torch.ones(2, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update(scale)
            assert scale == scaler.get_scale()
    assert [] == seen.events("guard.acted")


def test_the_scale_of_one_step_stays_one_while_gradients_are_added_up(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with watching(tmp_path, net, optimizer, scaler, guards=[guards.Scale()]):
        scaler.scale(net(torch.ones(2, 3)).sum()).backward()
        assert scaler._scale is not None
        scaler._scale.fill_(2.0**-130)
        scaler.scale(net(torch.ones(2, 3)).sum()).backward()
        assert 2.0**-130 == scaler.get_scale()


def two_scalers(folder: Path) -> tuple[list[float], list[float], Seen]:
    nets = [torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in nets]
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**12) for _ in nets]
    scales: tuple[list[float], list[float]] = [], []
    with watching(folder, nets, optimizers, scalers, guards=[guards.Scale()]) as seen:
        for step in range(12):
            for at, (net, optimizer, scaler) in enumerate(zip(nets, optimizers, scalers, strict=True)):
                optimizer.zero_grad()
                factor = 2.0**120 if at and 4 <= step < 8 else 1.0
                scaler.scale(net(torch.ones(2, 3)).sum() * factor).backward()
                scaler.step(optimizer)
            for at, scaler in enumerate(scalers):
                scaler.update()
                scales[at].append(scaler.get_scale())
    return *scales, seen


def test_each_of_several_scalers_is_guarded_by_itself(tmp_path: Path) -> None:
    first, second, seen = two_scalers(tmp_path)
    assert [2.0**12] * 12 == first
    assert 2.0**11 == second[4]
    assert 2.0**9 == second[5]
    assert second[7] < 2.0**9
    assert {4, 5, 6} >= {event.data["step"] for event in seen.events("guard.acted")}


def test_the_sharded_scaler_of_fsdp_is_guarded_too(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        scaler = ShardedGradScaler("cpu", init_scale=2.0**12)
        with watching(tmp_path, net, optimizer, scaler, guards=[guards.Scale()]):
            scales = []
            for step in range(8):
                optimizer.zero_grad()
                scaler.scale(net(torch.ones(2, 3)).sum() * (math.inf if step >= 4 else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
                scales.append(scaler.get_scale())
    finally:
        torch.distributed.destroy_process_group()
    assert [2.0**12] * 4 == scales[:4]
    assert 2.0**9 >= scales[5]


@pytest.mark.parametrize("optimizer", ["fused", "foreach"])
def test_a_fused_optimizer_whose_skip_only_its_kernel_knows_is_guarded_too(optimizer: str, tmp_path: Path) -> None:
    def adam(weights: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, lr=1e-2, fused=optimizer == "fused", foreach=optimizer == "foreach")

    bare = train(None, steps=60, scaler=EAGER, optimizer=adam)
    guarded = train(tmp_path, [guards.Scale()], steps=60, scaler=EAGER, optimizer=adam)
    assert skips(bare) > 30
    assert skips(guarded) <= 6


def test_a_run_of_short_steps_is_rested_in_and_guarded_all_the_same(tmp_path: Path) -> None:
    """Overflows wake the session; what it does is the same as where every step is heard."""

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step in (300, 400):
            scaler._scale.fill_(2.0**24)

    outcomes = [
        train(tmp_path / str(budget), [guards.Scale()], steps=500, before=before, budget=budget)
        for budget in (0.001, 1.0)
    ]
    assert outcomes[0].scales == outcomes[1].scales
    assert outcomes[0].actions() == outcomes[1].actions()
    assert outcomes[0].state == outcomes[1].state


def test_where_only_the_device_knows_the_scale_the_second_skip_quarters_it_and_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where asking for a number would be waiting for it."""
    monkeypatch.setattr("ammeter.guards.runner.known", lambda number: None)
    monkeypatch.setattr("ammeter.guards.scale.known", lambda number: pytest.fail("a number was asked for"))
    monkeypatch.setattr("ammeter.guards.scale._largest_gradient", lambda parameters: pytest.fail("gradients were read"))

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == 10:
            net.last.weight.register_hook(lambda gradient: torch.full_like(gradient, math.inf))

    healthy = train(tmp_path / "healthy", [guards.Scale()])
    assert train(None).state == healthy.state
    guarded = train(tmp_path / "guarded", [guards.Scale(floor=4)], before=before)
    assert [512.0, 128.0, 32.0, 8.0, 4.0, 4.0] == guarded.scales[10:16]
    assert [("backed off", 11)] == guarded.actions()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_each_of_several_ranks_does_the_same_for_it_counts_skips_and_reads_no_gradients(
    rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr("ammeter.guards.scale._largest_gradient", lambda parameters: pytest.fail("gradients were read"))
    guarded = train(tmp_path, [guards.Scale()], steps=60, scaler=EAGER)
    assert skips(guarded) <= 6
    assert "overflowed at" in next(data["reason"] for data in guarded.acted if data["action"] == "held")


def test_a_scale_that_overflowed_is_tried_again_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    seldom, often = (train(tmp_path / str(n), [guards.Scale(hold=n)], steps=90, scaler=EAGER) for n in (1000, 10))
    assert skips(seldom) < skips(often) < skips(train(None, steps=90, scaler=EAGER))
