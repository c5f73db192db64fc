"""The operator that made a NaN or an Inf is run again, which tells an overflow, bad numbers and a kernel apart."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import runpy
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from ammeter.probes.origin.floats import measured
from ammeter.probes.origin.graph import culprit, reproducer, trial
from ammeter.probes.origin.graph.nodes import nodes_of
from ammeter.verdicts.framework.finding import Finding
from tests.agent.probes.origin import planted_kernels
from tests.agent.training import watching

Loss = Callable[[], torch.Tensor]

NONE_LEFT = torch.zeros(4, 8, dtype=torch.bool)


def leaf(*shape: int, dtype: torch.dtype = torch.float32, factor: float = 1.0) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * factor
    return values.to(dtype).requires_grad_()


def half(*shape: int, factor: float = 1.0) -> torch.Tensor:
    return leaf(*shape, dtype=torch.float16, factor=factor)


def attention() -> torch.Tensor:
    query, key, value = (leaf(2, 2, 5, 8) * factor for factor in (1.0, 2.0, 3.0))
    return functional.scaled_dot_product_attention(query, key, value)


def linear(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Linear(8, 8, dtype=x.dtype)(x)  # type: ignore[no-any-return]


def found(loss: torch.Tensor) -> dict[str, Any]:
    assert not torch.isfinite(loss).all()
    origin = culprit.find_origin(loss, lambda _: "", lambda _: True)
    assert origin is not None
    return origin


PLANTED: dict[str, tuple[str, planted_kernels.Kernel, Loss]] = {
    "Softmax": ("_softmax", planted_kernels.softmax, lambda: torch.softmax(leaf(4, 8) * 2, -1).square().mean()),
    "LogSoftmax": (
        *("_log_softmax", planted_kernels.log_softmax),
        lambda: functional.cross_entropy(leaf(4, 8) * 1.5, torch.arange(4)),
    ),
    "Gelu": ("gelu", planted_kernels.gelu, lambda: functional.gelu(leaf(4, 8) * 1.5).mean()),
    "Silu": ("silu", planted_kernels.silu, lambda: functional.silu(leaf(4, 8) * 1.5).mean()),
    "MseLoss": ("mse_loss", planted_kernels.mse_loss, lambda: functional.mse_loss(leaf(4, 8) * 2, torch.zeros(4, 8))),
    "NativeLayerNorm": (
        *("native_layer_norm", planted_kernels.layer_norm),
        lambda: functional.layer_norm(leaf(4, 8) * 2, (8,)).square().mean(),
    ),
    "NativeGroupNorm": (
        *("native_group_norm", planted_kernels.group_norm),
        lambda: functional.group_norm(leaf(2, 4, 4) * 2, 2).square().mean(),
    ),
    "NativeBatchNorm": (
        *("native_batch_norm", planted_kernels.batch_norm),
        lambda: functional.batch_norm(leaf(2, 4, 4) * 2, None, None, training=True).square().mean(),
    ),
    "ScaledDotProductFlashAttentionForCpu": (
        *("_scaled_dot_product_flash_attention_for_cpu", planted_kernels.attention),
        lambda: attention().square().mean(),
    ),
    "Log": ("log", planted_kernels.logarithm, lambda: torch.log(leaf(4, 8).exp()).mean()),
    "Convolution": (
        *("mkldnn_convolution", planted_kernels.convolution),
        lambda: functional.conv2d(leaf(2, 3, 6, 6) * 2, leaf(4, 3, 3, 3)).square().mean(),
    ),
}

OVERFLOWS: dict[str, tuple[str, Loss]] = {
    "a product of matrices": ("Mm", lambda: (half(4, 64, factor=100) @ half(64, 8, factor=1000)).float().mean()),
    "a batch of products": ("Bmm", lambda: (half(2, 4, 64, factor=100) @ half(2, 64, 8, factor=1000)).float().mean()),
    "a square": ("Pow", lambda: (half(4, 8, factor=400) ** 2).float().mean()),
    "a product": ("Mul", lambda: (half(4, 8, factor=1000) * half(4, 8, factor=1000)).float().mean()),
    "a factor": ("Mul", lambda: (half(4, 8, factor=100) * 4096.0).float().mean()),
    "a quotient": ("Div", lambda: (half(4, 8) / half(4, 8, factor=1e-6).abs().clamp(min=1e-6)).float().mean()),
    "a small divisor": ("Div", lambda: (half(4, 8) / 1e-5).float().mean()),
    "an exponential": ("Exp", lambda: torch.exp(half(4, 8, factor=10) * 2.0).float().mean()),
    "an exponential in float32": ("Exp", lambda: torch.exp(leaf(4, 8) * 200).mean()),
    "a reciprocal": ("Reciprocal", lambda: (1 / (half(4, 8, factor=1e-6).abs().clamp(min=1e-6) * 1.0)).float().mean()),
    "a square in bfloat16": ("Pow", lambda: (leaf(4, 8, dtype=torch.bfloat16, factor=1e20) ** 2).float().mean()),
    "a factor of a linear layer": ("Mul", lambda: (linear(half(4, 8, factor=100)) * 4096.0).float().mean()),
    "a convolution": (
        "Convolution",
        lambda: (functional.conv2d(half(2, 8, 6, 6, factor=100), half(4, 8, 3, 3, factor=1000))).float().mean(),
    ),
    "a cross entropy's exponent": ("Expm1", lambda: torch.expm1(half(4, 8, factor=8) * 2.0).float().mean()),
}

UNDEFINED: dict[str, tuple[str, Loss]] = {
    "log of zero": ("Log", lambda: torch.log(functional.relu(leaf(4, 8))).mean()),
    "log of a negative number": ("Log", lambda: torch.log(leaf(4, 8)).mean()),
    "log1p below -1": ("Log1P", lambda: torch.log1p(leaf(4, 8) * 3).mean()),
    "log2 of zero in float16": ("Log2", lambda: torch.log2(functional.relu(half(4, 8))).float().mean()),
    "root of a negative number": ("Sqrt", lambda: torch.sqrt(leaf(4, 8) * 1.0).mean()),
    "division by zero": ("Div", lambda: (leaf(4, 8) / functional.relu(leaf(4, 8))).mean()),
    "0/0": ("Div", lambda: ((leaf(4, 8) - leaf(4, 8)) / (leaf(4, 8) - leaf(4, 8))).mean()),
    "a root by a power": ("Pow", lambda: (leaf(4, 8) ** 0.5).mean()),
    "a negative power of zero": ("Pow", lambda: (functional.relu(leaf(4, 8)) ** -1.0).mean()),
    "a rounded eps": ("Rsqrt", lambda: torch.rsqrt(functional.relu(half(4, 8)) * 1.0).float().mean()),
    "an exponential beyond every dtype": ("Exp", lambda: torch.exp(leaf(4, 8) * 2000).mean()),
    "arcus cosine of two": ("Acos", lambda: torch.acos(leaf(4, 8) * 2).mean()),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_kernel_that_is_wrong_on_one_backend_is_at_fault(kind: str) -> None:
    operator, kernel, make = PLANTED[kind]
    assert torch.isfinite(make())
    with planted_kernels.planted(operator, kernel):
        origin = found(make())
    assert (origin["trial"], origin["reason"]) == (trial.KERNEL, "")
    assert origin["op"].startswith(f"{kind}Backward")
    assert 0 < origin["exact"] < 1000


@pytest.mark.parametrize("case", OVERFLOWS)
def test_an_overflow_is_finite_in_float64_and_too_large(case: str) -> None:
    kind, make = OVERFLOWS[case]
    origin = found(make())
    assert origin["op"].startswith(f"{kind}Backward")
    assert (origin["trial"], origin["reason"]) == (trial.RANGE, "range")
    assert origin["exact"] > torch.finfo(getattr(torch, origin["dtype"])).max


@pytest.mark.parametrize("case", UNDEFINED)
def test_bad_numbers_are_not_finite_in_float64_either(case: str) -> None:
    kind, make = UNDEFINED[case]
    origin = found(make())
    assert origin["op"].startswith(f"{kind}Backward")
    assert (origin["trial"], origin["reason"], origin["exact"]) == (trial.UNDEFINED, "", None)


def test_an_output_that_the_program_changed_accuses_no_kernel() -> None:
    output = torch.nn.Linear(8, 8)(leaf(4, 8))
    output.data[0] = math.nan
    assert found(output.square().mean())["trial"] == trial.UNSTEADY


def test_a_kernel_that_fails_every_second_time_does_not_repeat_its_result() -> None:
    calls = iter(range(100))
    with planted_kernels.planted("silu", lambda x: planted_kernels.sigmoid_product(x, is_bad=not next(calls) % 2)):
        origin = found(functional.silu(leaf(4, 8) * 1.5).square().mean())
    assert (origin["trial"], origin["reason"]) == (trial.DIFFERS, "")


def test_targets_that_are_not_finite_need_no_trial() -> None:
    target = torch.zeros(4, 8)
    target[0] = math.nan
    origin = found(functional.mse_loss(leaf(4, 8) * 2, target))
    assert origin["reason"] == "constant"
    assert "trial" not in origin


def test_a_row_without_a_key_is_no_fault_of_the_kernel() -> None:
    scores = (leaf(4, 8) * 2).masked_fill(~NONE_LEFT, -math.inf)
    assert found(torch.softmax(scores, -1).mean()).get("trial") != trial.KERNEL


def test_a_norm_of_a_constant_row_with_an_eps_of_zero_is_no_fault_of_the_kernel() -> None:
    flat = leaf(4, 1).expand(4, 8) * 1.0
    assert found(functional.layer_norm(flat, (8,), eps=0.0).square().mean()).get("trial") is None


HUGE: dict[str, Loss] = {
    "a cross entropy": lambda: functional.cross_entropy(
        leaf(16, 8) * 1e-3 + torch.tensor([1e38, *[0.0] * 7]), torch.arange(16) % 7 + 1
    ),
    "a mean of squares": lambda: functional.mse_loss(leaf(64, 8) * 1e-3 + 3e18, torch.zeros(64, 8)),
}


@pytest.mark.parametrize("case", HUGE)
def test_a_sum_inside_of_a_kernel_that_exceeds_float32_is_no_fault_of_the_kernel(case: str) -> None:
    origin = found(HUGE[case]())
    assert origin["absmax"] < torch.finfo(torch.float32).max
    assert origin.get("trial") != trial.KERNEL


def test_attention_with_dropout_does_not_run_again() -> None:
    with planted_kernels.planted("_scaled_dot_product_flash_attention_for_cpu", planted_kernels.attention):
        loss = attention().mean()
        nodes = nodes_of(loss)
    node = next(node for node in nodes if node.kind.startswith("ScaledDot"))
    inputs = [None] * len(node.inputs)
    assert trial.of_operator(node, inputs, None) is None
    node.operands["dropout_p"] = 0.1
    assert trial.of_operator(node, inputs, measured(loss)) is None


def test_large_operands_do_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MAX_ELEMENTS", 8)
    assert "trial" not in found(torch.log(leaf(4, 8)).mean())


class Activated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(12, 20), torch.nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.leave(functional.gelu(self.enter(x)))
        return output


def _kernel_at_fault(folder: Path) -> tuple[Finding, Path]:
    """The finding about a training with a planted kernel, and the run's folder."""
    model = Activated()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(8, 12)
    with planted_kernels.planted("gelu", planted_kernels.gelu), watching(folder, model, optimizer) as seen:
        for _ in range(4):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not seen.events("checkpoint.saved")
    return seen.findings()["nonfinite-loss"], folder / seen.run


def test_the_finding_says_that_the_kernel_is_at_fault(tmp_path: Path) -> None:
    finding, _ = _kernel_at_fault(tmp_path)
    assert "the kernel is at fault, not the numbers" in finding.cause
    assert "with another kernel" in finding.fix


def test_a_program_in_the_runs_folder_shows_it_by_itself(tmp_path: Path) -> None:
    finding, folder = _kernel_at_fault(tmp_path)
    name = finding.evidence["reproducer"]
    assert name in finding.fix
    shown = subprocess.run([sys.executable, folder / name], capture_output=True, text=True, check=True, cwd=tmp_path)
    healthy = "as in the training: 160 elements, 0 of them NaN or Inf"  # here, where nothing is planted
    assert shown.stdout.startswith(healthy)
    assert len(shown.stdout.splitlines()) == 2
    assert len((folder / name).read_text().splitlines()) < 30
    assert stat.S_IMODE((folder / name).parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("case", [*OVERFLOWS, *UNDEFINED])
def test_the_programs_of_bad_numbers_show_them(case: str, tmp_path: Path) -> None:
    origin = found((OVERFLOWS | UNDEFINED)[case][1]())
    path = tmp_path / reproducer.write(tmp_path / "stream", 3, origin["op"], origin["operator"])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(str(path))
    as_it_was, exact = (line.partition(" elements, ")[2] for line in output.getvalue().splitlines())
    assert int(as_it_was.split()[0]) > 0
    assert (int(exact.split()[0]) > 0) == (case in UNDEFINED)


def test_no_program_is_written_where_that_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMMETER_REPRODUCERS", "0")
    finding, folder = _kernel_at_fault(tmp_path)
    assert "reproducer" not in finding.evidence
    assert not (folder / reproducer.FOLDER).exists()


def test_a_program_that_cannot_be_written_costs_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reproducer, "write", fails)
    finding, _ = _kernel_at_fault(tmp_path)
    assert finding.evidence["trial"] == trial.KERNEL
    assert "reproducer" not in finding.evidence
