"""The backward pass of an operator runs again and distinguishes overflow, undefined numbers, rounding and kernels."""

from __future__ import annotations

import contextlib
import io
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ammeter.probes.origin.graph import gradient_trial, reproducer, trial
from ammeter.probes.origin.graph.nodes import nodes_of
from ammeter.probes.origin.graph.trial import Trial
from tests.agent.probes.origin import planted_kernels
from tests.agent.probes.origin.test_trial import half, leaf

Loss = Callable[[], torch.Tensor]


def first_bad(loss: torch.Tensor) -> tuple[str, Trial | None]:
    """The first node that makes NaN or Inf from finite gradients, and its trial; '' if there is none."""
    found: list[tuple[str, Trial | None]] = []

    def hook(node: Any) -> Callable[[Any, Any], None]:
        def after(made: Any, received: Any) -> None:
            finite = [all(map(_is_finite, gradients)) for gradients in (made, received)]
            if not found and finite == [False, True]:
                found.append((node.name(), gradient_trial.of_node(node, received, made)))

        return after

    assert torch.isfinite(loss).all()
    handles = [
        node.grad_fn.register_hook(hook(node.grad_fn)) for node in nodes_of(loss, reads=False) if node.parameter is None
    ]
    loss.backward()  # type: ignore[no-untyped-call]
    for handle in handles:
        handle.remove()
    return found[0] if found else ("", None)


def _is_finite(gradient: torch.Tensor | None) -> bool:
    return gradient is None or bool(torch.isfinite(gradient).all())


def attention() -> torch.Tensor:
    query, key, value = (leaf(2, 2, 5, 8) * factor for factor in (1.0, 2.0, 3.0))
    return functional.scaled_dot_product_attention(query, key, value).square().mean()


PLANTED: dict[str, tuple[str, Loss]] = {
    "Gelu": ("gelu_backward", lambda: functional.gelu(leaf(4, 8) * 1.5).square().mean()),
    "Silu": ("silu_backward", lambda: functional.silu(leaf(4, 8) * 1.5).square().mean()),
    "Softmax": ("_softmax_backward_data", lambda: torch.softmax(leaf(4, 8) * 2, -1).square().mean()),
    "LogSoftmax": (
        *("_log_softmax_backward_data",),
        lambda: functional.cross_entropy(leaf(4, 8) * 1.5, torch.arange(4)),
    ),
    "NativeLayerNorm": (
        *("native_layer_norm_backward",),
        lambda: functional.layer_norm(leaf(4, 8) * 2, (8,)).pow(3).mean(),
    ),
    "NativeBatchNorm": (
        *("native_batch_norm_backward",),
        lambda: functional.batch_norm(leaf(2, 4, 4) * 2, None, None, training=True).pow(3).mean(),
    ),
    "ScaledDotProductFlashAttentionForCpu": ("_scaled_dot_product_flash_attention_for_cpu_backward", attention),
    "Tanh": ("tanh_backward", lambda: torch.tanh(leaf(4, 8) * 1.5).square().mean()),
    "Mm": ("mm", lambda: (leaf(4, 8) * 1.0 @ (leaf(8, 3) * 2)).square().mean()),
}

OVERFLOWS: dict[str, tuple[str, Loss]] = {
    "a scaled gradient": ("Mul", lambda: (half(4, 8) * 256.0).float().sum() * 1024.0),
    "a cast of a scaled gradient": ("ToCopy", lambda: (half(4, 8) * 1.0).float().sum() * 2.0**20),
    "a product of matrices": ("Mm", lambda: (half(4, 64) @ half(64, 8, factor=1000)).float().sum() * 64.0),
    "a small divisor": ("Div", lambda: (half(4, 8) / 1e-4).float().sum() * 16.0),
    "a square in bfloat16": (
        *("Mul",),
        lambda: (leaf(4, 8, dtype=torch.bfloat16) * 1e-30 * 2.0**120).float().sum() * 2.0**20,
    ),
}

UNDEFINED: dict[str, tuple[str, Loss]] = {
    "a square root of zero": ("Sqrt", lambda: torch.sqrt(functional.relu(leaf(4, 8) - 5)).sum()),
    "a square root of zero in float16": ("Sqrt", lambda: torch.sqrt(functional.relu(half(4, 8) - 5)).float().sum()),
    "a power of zero": ("Pow", lambda: (functional.relu(leaf(4, 8) - 5) ** 0.5).sum()),
    "an arc cosine of 1": ("Acos", lambda: torch.acos(leaf(4, 8) * 0 + 1).sum()),
    "a distance of zero": ("Sqrt", lambda: (leaf(4, 8) - leaf(4, 8)).square().sum(-1).sqrt().sum()),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_backward_kernel_that_is_wrong_is_at_fault(kind: str) -> None:
    operator, make = PLANTED[kind]
    assert ("", None) == first_bad(make())
    loss = make()
    with planted_kernels.planted(operator, planted_kernels.spoiled_kernel(operator)):
        name, tried = first_bad(loss)
    assert name.startswith(f"{kind}Backward")
    assert tried is not None
    assert trial.KERNEL == tried.answer
    assert 0 < (tried.absmax or 0) < 1000
    assert f"torch.ops.aten.{operator}" in tried.expression


@pytest.mark.parametrize("case", OVERFLOWS)
def test_an_overflow_is_finite_in_float64_and_too_large(case: str) -> None:
    kind, make = OVERFLOWS[case]
    name, tried = first_bad(make())
    assert name.startswith(f"{kind}Backward")
    assert tried is not None
    assert trial.RANGE == tried.answer
    assert (tried.absmax or 0) > 65504


def test_a_sum_of_gradients_that_exceeds_float32_is_no_fault_of_the_kernel() -> None:
    signs = torch.tensor([[3e38], [3e38], [-3e38], [-3e38]])
    assert ("MmBackward0", None) == first_bad((torch.ones(4, 8) @ (leaf(8, 3) * 0.0) * signs).sum())


@pytest.mark.parametrize("case", UNDEFINED)
def test_an_undefined_derivative_is_not_finite_in_float64_either(case: str) -> None:
    kind, make = UNDEFINED[case]
    name, tried = first_bad(make())
    assert name.startswith(f"{kind}Backward")
    assert tried is not None
    assert (trial.UNDEFINED, None) == (tried.answer, tried.absmax)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.linalg.vector_norm(leaf(4, 8) * 0, dim=-1).sum(),
        lambda: (leaf(4, 8) * 0).norm(),
        lambda: (leaf(4, 1).expand(4, 8) * 1.0).std(-1).sum(),
        lambda: torch.atan2(leaf(4, 8) * 0, leaf(4, 8) * 0).sum(),
        lambda: functional.softmax(leaf(4, 8).masked_fill(torch.arange(8) > 3, -math.inf), -1).square().sum(),
    ],
    ids=["a norm of zero", "a norm of all", "a deviation of a constant", "atan2 of zeros", "a mask"],
)
def test_derivatives_that_torch_defines_at_singular_points_are_no_fault(make: Loss) -> None:
    assert ("", None) == first_bad(make())


def test_a_formula_that_rounds_its_divisor_to_zero_is_no_fault_of_the_kernel() -> None:
    small = torch.full((4, 8), 2.0**-14, dtype=torch.float16).requires_grad_()
    name, tried = first_bad(torch.linalg.vector_norm(small * 1.0, 3, dim=-1).float().sum())  # divides by the square
    assert "LinalgVectorNormBackward0" == name
    assert tried is not None
    assert trial.ROUNDED == tried.answer
    assert 0 < (tried.absmax or 0) < 10


def test_a_kernel_that_fails_every_second_time_does_not_repeat_its_result() -> None:
    calls = iter(range(100))

    def silu_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result = gradient * torch.sigmoid(x)
        return planted_kernels.spoiled(result) if not next(calls) % 2 else result

    loss = functional.silu(leaf(4, 8) * 1.5).square().mean()
    with planted_kernels.planted("silu_backward", silu_backward):
        name, tried = first_bad(loss)
    assert "SiluBackward0" == name
    assert tried is not None
    assert trial.DIFFERS == tried.answer


class Own(torch.autograd.Function):
    """Doubles; its backward pass does what a function of the program does."""

    made: Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.calls = 0
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        ctx.calls += 1
        return Own.made(ctx, gradient, x)


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], tuple[str, Trial | None]]:
    def run(made: Any) -> tuple[str, Trial | None]:
        monkeypatch.setattr(Own, "made", staticmethod(made), raising=False)
        return first_bad(Own.apply(leaf(4, 8) * 1.0).square().mean())  # type: ignore[no-untyped-call]

    return run


def test_an_own_function_that_repeats_its_nan_is_named_without_a_claim(backward: Any) -> None:
    assert ("OwnBackward", None) == backward(lambda _, gradient, x: gradient / (x - x))


def test_an_own_function_that_is_finite_the_next_time_does_not_repeat_its_result(backward: Any) -> None:
    calls = iter(range(100))
    name, tried = backward(lambda _, gradient, x: gradient * 2 if next(calls) else gradient * math.nan)
    assert "OwnBackward" == name
    assert trial.UNSTEADY == tried.answer


def test_an_own_function_runs_again_with_its_context_as_it_was(backward: Any) -> None:
    seen: list[int] = []

    def noted(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        seen.append(ctx.calls)
        return gradient * math.nan

    backward(noted)
    assert [1, 2, 2] == seen


def test_an_own_function_that_writes_into_tensors_of_the_program_does_not_run_again(backward: Any) -> None:
    total = torch.zeros(4, 8)

    def accumulates(_: Any, gradient: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        return gradient * math.nan

    assert ("OwnBackward", None) == backward(accumulates)
    assert torch.equal(torch.ones(4, 8), total)


def test_an_own_function_that_draws_random_numbers_leaves_the_generator_alone(backward: Any) -> None:
    torch.manual_seed(3)
    torch.randn(4, 8)
    expected = torch.randn(2)
    torch.manual_seed(3)
    backward(lambda _, gradient, __: gradient * torch.randn(4, 8) * math.nan)
    assert torch.equal(expected, torch.randn(2))


def test_saved_tensors_with_hooks_of_the_program_are_not_read_again() -> None:
    unpacked: list[int] = []

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = torch.sqrt(functional.relu(leaf(4, 8) - 5)).sum()
    assert ("SqrtBackward0", None) == first_bad(loss)
    assert 2 == len(unpacked)  # of the root and of the relu, for the program's own backward pass


def test_large_gradients_do_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_trial, "MAX_ELEMENTS", 8)
    assert ("SqrtBackward0", None) == first_bad(torch.sqrt(functional.relu(leaf(4, 8) - 5)).sum())


def test_the_gradients_of_the_program_are_those_without_a_trial() -> None:
    def gradient(watched: bool) -> torch.Tensor:
        x = leaf(4, 8)
        loss = torch.sqrt(functional.relu(x)).sum()
        if watched:
            first_bad(loss)
        else:
            loss.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(False).view(torch.int32), gradient(True).view(torch.int32))


@pytest.mark.parametrize("case", [*OVERFLOWS, *UNDEFINED])
def test_the_programs_of_bad_gradients_show_them(case: str, tmp_path: Path) -> None:
    name, tried = first_bad((OVERFLOWS | UNDEFINED)[case][1]())
    assert tried is not None
    path = tmp_path / reproducer.write(tmp_path / "stream", 3, name, tried)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(path))
    as_it_was, exact = (line.partition(" elements, ")[2] for line in output.getvalue().splitlines())
    assert int(as_it_was.split()[0]) > 0
    assert (int(exact.split()[0]) > 0) == (case in UNDEFINED)


@pytest.mark.parametrize("kind", ["Softmax", "NativeLayerNorm", "ScaledDotProductFlashAttentionForCpu"])
def test_the_program_of_a_kernel_runs_by_itself(kind: str, tmp_path: Path) -> None:
    operator, make = PLANTED[kind]
    loss = make()
    with planted_kernels.planted(operator, planted_kernels.spoiled_kernel(operator)):
        name, tried = first_bad(loss)
    assert tried is not None
    path = tmp_path / reproducer.write(tmp_path / "stream", 3, name, tried)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(path))
    assert ["0 of them NaN or Inf"] * 2 == [line[line.index("0 of") :][:20] for line in output.getvalue().splitlines()]
