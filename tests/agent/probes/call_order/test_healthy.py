"""Programs as people write them: none of them makes a mistake, and none is told of one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.agent.training import Model, watching

Program = Callable[[Path], Any]
HEALTHY: list[Program] = []

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
"""torch warns of schedulers that start with a skipped step, and while it compiles."""


def healthy(program: Program) -> Program:
    HEALTHY.append(program)
    return program


def scaler(scale: float = 2.0**10, **options: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def loss_of(model: Any, dtype: torch.dtype | None = torch.float16) -> Any:
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = model(torch.randn(8, 12))
    return output.float().square().mean()


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-3, "momentum": 0.9, **options})


@healthy
def float32(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            loss_of(model, None).backward()
            optimizer.step()
    return seen


@healthy
def bfloat16(folder: Path) -> Any:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            loss_of(model, torch.bfloat16).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return seen


@healthy
def bfloat16_with_a_scaler_that_is_switched_off(folder: Path) -> Any:
    model, scales = Model(), scaler(enabled=False)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            scales.scale(loss_of(model, torch.bfloat16)).backward()
            scales.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def float16_with_growth_and_clipping(folder: Path) -> Any:
    model, scales = Model(), scaler(growth_interval=3)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(16):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.unscale_(optimizer)
            if step % 2:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            else:
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def accumulation_over_four_batches(folder: Path) -> Any:
    model, scales = Model(), scaler(growth_interval=2)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for batch in range(32):
            scales.scale(loss_of(model) / 4).backward()
            if batch % 4 == 3:
                scales.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scales.step(optimizer)
                scales.update()
                optimizer.zero_grad(set_to_none=False)
    return seen


@healthy
def what_is_scaled_is_divided_summed_and_a_list(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(12):
            optimizer.zero_grad()
            if step % 4 == 0:
                scaled = scales.scale(loss_of(model))
                (scaled / 4).backward(retain_graph=True)
                (scaled * 0.75).backward()
            elif step % 4 == 1:
                total = torch.zeros(())
                for _ in range(40):
                    total = total + scales.scale(loss_of(model))
                total.backward()  # type: ignore[no-untyped-call]
            elif step % 4 == 2:
                first, second = scales.scale([loss_of(model), loss_of(model)])
                torch.autograd.backward([first, second])
            else:
                torch.stack([scales.scale(loss_of(model)), scales.scale(loss_of(model))]).mean().backward()  # type: ignore[no-untyped-call]
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def an_iterator_of_scaled_losses(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(6):
            optimizer.zero_grad()
            for each in scales.scale(loss_of(model) for _ in range(2)):
                each.backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_model_in_two_halves_with_the_gradient_handed_over(folder: Path) -> Any:
    first, second, scales = torch.nn.Linear(12, 12), torch.nn.Linear(12, 3), scaler()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-3)
    with watching(folder, [first, second], optimizer, scales) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            between = first(torch.randn(4, 12))
            cut = between.detach().requires_grad_()
            scales.scale(second(cut).square().mean()).backward()
            between.backward(cut.grad)
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def model_zero_grad(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(20):
            model.zero_grad(set_to_none=step % 2 == 0)
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def gradients_set_to_none_by_hand(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for step in range(40):
            for parameter in model.parameters():
                if parameter.grad is None or step % 4 == 0:
                    parameter.grad = None
                elif step % 4 == 1:
                    parameter.grad.zero_()
                elif step % 4 == 2:
                    parameter.grad.data.zero_()
                else:
                    parameter.grad = torch.zeros_like(parameter)
            loss_of(model, None).backward()
            optimizer.step()
    return seen


@healthy
def gradients_zeroed_behind_their_version_in_every_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(40):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.zero_()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


def gan(folder: Path, scalers: int, *, detach: bool, updates: int, by_hand: bool = False) -> Any:
    maker, judge = torch.nn.Linear(6, 12), Model()
    scales = [scaler(growth_interval=5) for _ in range(scalers)]
    first, last = scales[0], scales[-1]
    makes, judges = torch.optim.Adam(maker.parameters(), lr=1e-4), sgd(judge)

    def reset(optimizer: Any) -> None:
        if not by_hand:
            optimizer.zero_grad()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.zero_()

    with watching(folder, [maker, judge], [makes, judges], scales) as seen:
        for _ in range(30):
            made = maker(torch.randn(8, 6))
            reset(judges)
            with torch.autocast("cpu", torch.float16):
                loss = judge(made.detach() if detach else made).float().square().mean()
            first.scale(loss).backward(retain_graph=not detach)
            first.step(judges)
            if updates == 2 and scalers == 1:
                first.update()
            reset(makes)
            with torch.autocast("cpu", torch.float16):
                fooled = judge(made).float().mean()
            last.scale(fooled).backward()
            last.step(makes)
            for each in scales:
                each.update()
    return seen


@healthy
def a_gan_under_one_scaler(folder: Path) -> Any:
    return gan(folder, 1, detach=True, updates=1)


@healthy
def a_gan_whose_gradients_are_zeroed_by_hand(folder: Path) -> Any:
    return gan(folder, 1, detach=False, updates=1, by_hand=True)


@healthy
def a_gan_with_an_update_for_each_half(folder: Path) -> Any:
    return gan(folder, 1, detach=False, updates=2)


@healthy
def a_gan_under_two_scalers(folder: Path) -> Any:
    return gan(folder, 2, detach=True, updates=1)


@healthy
def a_gan_in_float32(folder: Path) -> Any:
    maker, judge = torch.nn.Linear(6, 12), Model()
    makes, judges = sgd(maker), sgd(judge)
    with watching(folder, [maker, judge], [makes, judges]) as seen:
        for _ in range(20):
            judges.zero_grad()
            judge(maker(torch.randn(8, 6)).detach()).square().mean().backward()
            judges.step()
            makes.zero_grad()
            judge(maker(torch.randn(8, 6))).mean().backward()
            makes.step()
    return seen


@healthy
def a_critic_with_a_gradient_penalty_whose_maker_steps_every_other_time(folder: Path) -> Any:
    maker, judge, scales = torch.nn.Linear(6, 12), torch.nn.Linear(12, 1), scaler(growth_interval=4)
    makes, judges = sgd(maker), sgd(judge)
    with watching(folder, [maker, judge], [makes, judges], scales) as seen:
        for step in range(20):
            judges.zero_grad()
            x = maker(torch.randn(8, 6)).detach().requires_grad_()
            score = judge(x).square().mean()
            (slope,) = torch.autograd.grad(scales.scale(score), x, create_graph=True)
            penalty = (slope / scales.get_scale()).norm()
            scales.scale(score + penalty).backward()
            scales.step(judges)
            if step % 2:
                makes.zero_grad()
                scales.scale(judge(maker(torch.randn(8, 6))).mean()).backward()
                scales.step(makes)
            scales.update()
    return seen


@healthy
def the_penalty_on_scaled_gradients_of_the_amp_examples(folder: Path) -> Any:
    model, scales = torch.nn.Linear(12, 3), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            optimizer.zero_grad()
            loss = loss_of(model)
            scaled = torch.autograd.grad(outputs=scales.scale(loss), inputs=list(model.parameters()), create_graph=True)
            penalty = torch.stack([(each / scales.get_scale()).square().sum() for each in scaled]).sum().sqrt()
            scales.scale(loss + penalty).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def gradients_put_in_place_by_hand(folder: Path) -> Any:
    model, scales = torch.nn.Linear(12, 3), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            parameters = list(model.parameters())
            for at, each in zip(parameters, torch.autograd.grad(scales.scale(loss_of(model)), parameters), strict=True):
                at.grad = each
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def gradients_unscaled_by_hand_before_a_plain_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= scales.get_scale()
            optimizer.step()
    return seen


@healthy
def unscale_and_a_plain_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.unscale_(optimizer)
            optimizer.step()
            scales.update()
    return seen


@healthy
def a_third_network_that_trains_in_float32_beside_it(folder: Path) -> Any:
    model, other, scales = Model(), Model(), scaler()
    optimizer, others = sgd(model), sgd(other)
    with watching(folder, [model, other], [optimizer, others], scales) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            others.zero_grad()
            loss_of(other, None).backward()
            others.step()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_penalty_added_to_gradients_that_are_unscaled(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(10):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.unscale_(optimizer)
            (1e-4 * model.first.weight.square().sum()).backward()  # type: ignore[no-untyped-call]
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def lbfgs(folder: Path) -> Any:
    model = torch.nn.Linear(12, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(16, 12)

    def closure() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss: torch.Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with watching(folder, model, optimizer) as seen:
        for _ in range(8):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    return seen


@healthy
def a_schedule_for_each_step_with_a_scale_that_calibrates(folder: Path) -> Any:
    model, scales = Model(), scaler(2.0**24)
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=40)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(30):
            optimizer.zero_grad()
            scales.scale(loss_of(model) * 100).backward()
            scales.step(optimizer)
            scales.update()
            schedule.step()
    assert 2 < len(seen.events("step.skipped"))
    return seen


@healthy
def a_schedule_for_each_epoch_with_a_skip_in_it(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [2],
    )
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(30):
            optimizer.zero_grad()
            scales.scale(loss_of(model) * (float("inf") if step == 17 else 1)).backward()
            scales.step(optimizer)
            scales.update()
            if step % 5 == 4:
                schedule.step()
    assert 1 == len(seen.events("step.skipped"))
    return seen


@healthy
def a_plateau_schedule_after_each_evaluation(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    with watching(folder, model, optimizer) as seen:
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, None).backward()
            optimizer.step()
            if step % 4 == 3:
                model.eval()
                with torch.no_grad():
                    schedule.step(loss_of(model, None))
                model.train()
    return seen


@healthy
def an_average_of_the_model(folder: Path) -> Any:
    model, scales = Model(), scaler()
    average, averaged = copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model)
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(12):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
            averaged.update_parameters(model)
            with torch.no_grad():
                for own, other in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(other, 0.1)
    return seen


@pytest.mark.parametrize(
    "options", [{"fused": True}, {"foreach": True}, {"foreach": False}, {"capturable": False, "amsgrad": True}], ids=str
)
@pytest.mark.parametrize("skips", [False, True], ids=["applied", "skipped"])
def test_optimizers_of_every_make_are_told_of_nothing(options: dict[str, Any], skips: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, scales = Model(), scaler()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for step in range(12):
            optimizer.zero_grad(set_to_none=step % 3 > 0)
            scales.scale(loss_of(model) * (float("inf") if skips and step in (6, 7) else 1)).backward()
            if step % 2:
                scales.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            scales.update()
    assert (2 if skips else 0) == len(seen.events("step.skipped"))
    assert {} == seen.usage()


@healthy
def a_skip_that_is_zeroed_like_any_other_step(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(14):
            scales.scale(loss_of(model) * (float("nan") if step in (5, 9) else 1)).backward()
            scales.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scales.step(optimizer)
            scales.update()
            optimizer.zero_grad(set_to_none=step < 7)
    assert 2 == len(seen.events("step.skipped"))
    return seen


@healthy
def a_compiled_model(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    forward = torch.compile(model, backend="eager")
    with watching(folder, model, optimizer, scales) as seen:
        for _ in range(6):
            optimizer.zero_grad()
            scales.scale(loss_of(forward)).backward()
            scales.step(optimizer)
            scales.update()
    torch._dynamo.reset()
    return seen


@healthy
def a_run_that_is_resumed_with_its_scaler(folder: Path) -> Any:
    model, scales = Model(), scaler(65536.0 / 256)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        scales.scale(loss_of(model)).backward()
        scales.step(optimizer)
        scales.update()
    kept, counted, before = optimizer.state_dict(), scales.state_dict(), model.state_dict()
    model, scales = Model(), torch.amp.GradScaler("cpu")
    model.load_state_dict(before)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(kept)
    scales.load_state_dict(counted)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(12):
            if step == 6:
                optimizer.load_state_dict(kept)
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_fresh_scaler_for_pretrained_weights(folder: Path) -> Any:
    weights = Model().state_dict()
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        model.load_state_dict(weights)
        optimizer.load_state_dict(sgd(model).state_dict())
        for _ in range(5):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def a_scaler_of_each_epoch_that_is_given_the_state_of_the_last(folder: Path) -> Any:
    model = Model()
    optimizer, state = sgd(model), scaler().state_dict()
    with watching(folder, model, optimizer) as seen:
        for _ in range(3):
            scales = scaler()
            scales.load_state_dict(state)
            for _ in range(4):
                optimizer.zero_grad()
                scales.scale(loss_of(model)).backward()
                scales.step(optimizer)
                scales.update()
            state = scales.state_dict()
    return seen


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, as accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer, scales: torch.amp.GradScaler) -> None:
        self.optimizer = optimizer
        self.scales = scales

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.scales.step(self.optimizer)
        self.scales.update()


@healthy
def an_optimizer_around_another_one(folder: Path) -> Any:
    model, scales = Model(), scaler()
    inner = sgd(model)
    optimizer = Wrapped(inner, scales)
    with watching(folder, model, [optimizer, inner], scales) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            optimizer.step()
    return seen


@healthy
def checkpointed_layers(folder: Path) -> Any:
    model, scales = Model(), scaler()
    optimizer = sgd(model)
    with watching(folder, model, optimizer, scales) as seen:
        for step in range(8):
            optimizer.zero_grad()
            x = torch.randn(8, 12, requires_grad=True)
            with torch.autocast("cpu", torch.float16):
                y = checkpoint(model, x, use_reentrant=step % 2 == 0)
            scales.scale(y.float().square().mean()).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@healthy
def half_of_the_model_is_frozen_and_its_float16_teacher_makes_no_gradients(folder: Path) -> Any:
    model, teacher = Model(), Model().half()
    for parameter in model.first.parameters():
        parameter.requires_grad_(False)
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                wanted = teacher(torch.randn(8, 12).half()).detach().float()
            (loss_of(model, None) + wanted.square().mean()).backward()
            optimizer.step()
    return seen


@healthy
def an_optimizer_for_each_layer_that_steps_inside_backward(folder: Path) -> Any:
    model = Model()
    optimizers: Any = {parameter: torch.optim.SGD([parameter], lr=1e-3) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]
    with watching(folder, model, list(optimizers.values())) as seen:
        for _ in range(8):
            loss_of(model, None).backward()
    return seen


@healthy
def parameters_without_gradients_and_an_optimizer_that_is_never_used(folder: Path) -> Any:
    model, idle, scales = Model(), torch.nn.Linear(2, 2), scaler()
    optimizer, unused = torch.optim.SGD([*idle.parameters(), *model.parameters()], lr=1e-3), sgd(idle)
    with watching(folder, model, [optimizer, unused], scales) as seen:
        for _ in range(8):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__.replace("_", " "))
def test_a_healthy_program_is_told_of_nothing(program: Program, seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    assert {} == program(tmp_path).usage()
