"""backward() that recomputes in another dtype is seen; every recomputation in the same one is silent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.agent.training import Seen, line_of, watching

NAME = "kernels.recomputed"
WIDTH, BATCH = 16, 8

Around = Callable[["Own"], Any]


def bfloat16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Recomputed(torch.autograd.Function):
    """A checkpoint of the program's own, which enters `again` for the recomputation."""

    @staticmethod
    def forward(ctx: Any, block: Any, again: Callable[[], Any], inputs: torch.Tensor) -> torch.Tensor:
        ctx.block, ctx.again = block, again
        ctx.save_for_backward(inputs)
        with torch.no_grad():
            outputs: torch.Tensor = block(inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, None, torch.Tensor | None]:
        inputs = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), ctx.again():
            outputs = ctx.block(inputs)
        torch.autograd.backward(outputs, grad.to(outputs.dtype))
        return None, None, inputs.grad


class Own(torch.nn.Module):
    """Calls its block through `step`."""

    def __init__(self, step: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.step = step
        self.first, self.head = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2)
        self.block = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.step(self, self.first(x)))  # type: ignore[no-any-return]


def outside_of_autocast(model: Own, x: torch.Tensor) -> torch.Tensor:
    return Recomputed.apply(model.block, nullcontext, x.float())  # type: ignore[no-any-return, no-untyped-call]


def in_float16(model: Own, x: torch.Tensor) -> torch.Tensor:
    again = lambda: torch.autocast("cpu", dtype=torch.float16)  # noqa: E731
    return Recomputed.apply(model.block, again, x)  # type: ignore[no-any-return, no-untyped-call]


def with_one_context(model: Own, x: torch.Tensor) -> torch.Tensor:
    contexts = lambda: (nullcontext(), torch.autocast("cpu", enabled=False))  # noqa: E731
    return checkpoint(model.block, x.float(), use_reentrant=False, context_fn=contexts)  # type: ignore[no-any-return]


def unchecked(model: Own, x: torch.Tensor) -> torch.Tensor:
    contexts = lambda: (nullcontext(), torch.autocast("cpu", enabled=False))  # noqa: E731
    options: dict[str, Any] = {"context_fn": contexts, "determinism_check": "none"}
    return checkpoint(model.block, x.float(), use_reentrant=False, **options)  # type: ignore[no-any-return]


def by_the_grad_mode(model: Own, x: torch.Tensor) -> torch.Tensor:
    def run(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=not torch.is_grad_enabled()):
            return model.block(inputs.float())  # type: ignore[no-any-return]

    return checkpoint(run, x, use_reentrant=True)  # type: ignore[no-any-return]


def restored(model: Own, x: torch.Tensor) -> torch.Tensor:
    return Recomputed.apply(model.block, bfloat16, x)  # type: ignore[no-any-return, no-untyped-call]


def reentrant(model: Own, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model.block, x, use_reentrant=True)  # type: ignore[no-any-return]


def not_reentrant(model: Own, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model.block, x, use_reentrant=False)  # type: ignore[no-any-return]


def in_float32_twice(model: Own, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return Recomputed.apply(model.block, nullcontext, x.float())  # type: ignore[no-any-return, no-untyped-call]


def with_its_own_autocast(model: Own, x: torch.Tensor) -> torch.Tensor:
    def run(inputs: torch.Tensor) -> torch.Tensor:
        with bfloat16():
            return model.block(inputs)  # type: ignore[no-any-return]

    return Recomputed.apply(run, nullcontext, x.float())  # type: ignore[no-any-return, no-untyped-call]


def by_a_hook(model: Own, x: torch.Tensor) -> torch.Tensor:
    """Another use of the block inside backward(), which recomputes nothing."""
    y = model.block(x)
    y.register_hook(lambda _: model.block(x.detach().float()).sum() and None)
    return y  # type: ignore[no-any-return]


class Looked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Any, inputs: torch.Tensor) -> torch.Tensor:
        ctx.block = block
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        ctx.block(torch.ones(BATCH, WIDTH))  # no gradients
        with torch.enable_grad():
            ctx.block(torch.ones(BATCH + 1, WIDTH))  # another batch
        return None, grad


def by_a_look_at_it(model: Own, x: torch.Tensor) -> torch.Tensor:
    return Looked.apply(model.block, model.block(x))  # type: ignore[no-any-return, no-untyped-call]


def in_both_dtypes(model: Own, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        y = model.block(x.float())
    return y + outside_of_autocast(model, x)  # type: ignore[no-any-return]


def hooks(model: torch.nn.Module) -> list[Any]:
    """What a copy of the model would contain."""
    return [hook for module in model.modules() for hook in module._forward_hooks]


def trained(folder: Path, step: Any, steps: int = 4, late: Any = None, penalty: bool = False, **options: Any) -> Seen:
    """A run; late: what replaces `step` from step 10 on."""
    torch.manual_seed(0)
    model = Own(step)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer, **options) as seen:
        for number in range(steps):
            model.step = late if late and number >= 10 else step
            x = torch.randn(BATCH, WIDTH, requires_grad=True)
            with bfloat16():
                loss = model(x).float().square().mean()
            if penalty:
                (slope,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = loss + slope.square().sum()
            assert not hooks(model)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            assert not hooks(model)
            optimizer.step()
    assert [] == seen.events("probe.failed")
    return seen


@pytest.mark.parametrize(
    ("step", "again", "line"),
    [
        (outside_of_autocast, ("float32", "off", False), (Recomputed.backward, "ctx.block(inputs)")),
        (in_float16, ("float16", "float16", False), (Recomputed.backward, "ctx.block(inputs)")),
        (by_the_grad_mode, ("float32", "off", True), None),
    ],
)
def test_a_switch_of_the_dtype_is_reported_after_two_steps(step: Any, again: Any, line: Any, tmp_path: Path) -> None:
    (event,) = trained(tmp_path, step).events(NAME)
    data = event.data
    assert ("block.0", 3, "bfloat16", "bfloat16") == tuple(
        data[name] for name in ("module", "modules", "dtype", "autocast")
    )
    assert again == tuple(data[name] for name in ("again", "autocast_again", "checkpoint"))
    assert (0, 2, False) == (data["first_step"], event.step, data["raised"])
    assert str(data["line"]).endswith(line_of(trained, "torch.autograd.backward(loss)"))
    assert str(data["caller"]).endswith(line_of(*line) if line else "")


@pytest.mark.parametrize(
    "step",
    [
        restored,
        reentrant,
        not_reentrant,
        in_float32_twice,
        with_its_own_autocast,
        by_a_hook,
        by_a_look_at_it,
        in_both_dtypes,
    ],
)
def test_other_calls_inside_backward_are_silent(step: Any, tmp_path: Path) -> None:
    assert [] == trained(tmp_path, step).events(NAME)


def test_a_gradient_of_a_gradient_is_silent(tmp_path: Path) -> None:
    assert [] == trained(tmp_path, not_reentrant, penalty=True).events(NAME)


def test_one_step_is_not_enough(tmp_path: Path) -> None:
    assert [] == trained(tmp_path, outside_of_autocast, steps=1).events(NAME)


def test_a_switch_that_begins_late_is_found_at_the_latest_when_the_run_is_twice_as_long(tmp_path: Path) -> None:
    (event,) = trained(tmp_path, restored, 40, late=outside_of_autocast, preset="full").events(NAME)
    assert (16, 18) == (event.data["first_step"], event.step)


def ended(model: Own, optimizer: torch.optim.Optimizer, folder: Path) -> Seen:
    """A run that ends with an error of its first backward()."""

    def backward() -> None:
        with watching(folder, model, optimizer) as seen:
            runs.append(seen)
            with bfloat16():
                loss = model(torch.randn(BATCH, WIDTH)).float().sum()
            torch.autograd.backward(loss)

    runs: list[Seen] = []
    with pytest.raises((RuntimeError, ValueError)):
        backward()
    assert not hooks(model)
    return runs[0]


def test_a_context_of_a_new_dtype_inside_backward_is_looked_at_in_the_next_step(tmp_path: Path) -> None:
    (event,) = trained(tmp_path, restored, 14, late=in_float16, preset="full").events(NAME)
    assert (11, 13) == (event.data["first_step"], event.step)


class InBfloat16(torch.nn.Linear):
    """Computes in bfloat16 whether autocast is on or not."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.nn.functional.linear(inputs.bfloat16(), self.weight.bfloat16())


@pytest.mark.parametrize("is_first", [False, True])
def test_an_error_in_the_recomputation_is_a_consequence(is_first: bool, tmp_path: Path) -> None:
    """A module before the one that raises has returned another dtype, or the state of autocast alone shows it."""
    model = Own(outside_of_autocast)
    layer = InBfloat16(WIDTH, WIDTH)
    model.block = torch.nn.Sequential(*([] if is_first else [model.block[0]]), layer, torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = ended(model, optimizer, tmp_path)
    (event,) = seen.events(NAME)
    assert ("", "block.1") if is_first else ("float32", "block.0") == (event.data["again"], event.data["module"])
    assert (True, "bfloat16", "off") == tuple(event.data[name] for name in ("raised", "autocast", "autocast_again"))
    assert {"dtype-switched", "unsupported-op"} == seen.findings().keys()


@pytest.mark.parametrize("step", [with_one_context, unchecked])
def test_an_error_of_checkpoint_is_a_consequence(step: Any, tmp_path: Path) -> None:
    model = Own(step)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = ended(model, optimizer, tmp_path)
    (event,) = seen.events(NAME)
    assert ("block.0", "bfloat16", "float32", True) == tuple(
        event.data[name] for name in ("module", "dtype", "again", "checkpoint")
    )
    assert {"dtype-switched", "unsupported-op"} == seen.findings().keys()


def test_a_compiled_model_has_no_hooks(tmp_path: Path) -> None:
    model: Any = torch.compile(Own(not_reentrant), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    during: list[Any] = []
    with watching(tmp_path, model, optimizer):
        with bfloat16():
            loss = model(torch.randn(BATCH, WIDTH)).float().sum()
        loss.register_hook(lambda _: during.extend(hooks(model)))
        torch.autograd.backward(loss)
        optimizer.step()
    assert [] == during
