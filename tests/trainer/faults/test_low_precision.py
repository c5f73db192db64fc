"""Symptoms of the faults that cost only speed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from console import Summary
from tests.trainer.conftest import Seen
from tests.trainer.faults.runs import Check, arch, healthy, symptoms, with_options

pytestmark = pytest.mark.long


def shows_fp32_fallback(run: Summary, seen: Seen) -> None:
    first, middle = (block.mlp for block in seen.model.blocks)
    assert (torch.float16, torch.float32) == (below_autocast(first, seen).dtype, below_autocast(middle, seen).dtype)
    learns_as_a_healthy_run(run, seen)


def shows_cast_churn(run: Summary, seen: Seen) -> None:
    first, middle = (block.mlp for block in seen.model.blocks)
    positions = {"gpt": 32, "cnn": 8}[arch(seen)]
    assert [5, 5 * positions] == [casts(first, seen), casts(middle, seen)]
    learns_as_a_healthy_run(run, seen)


def shows_autocast_scope(run: Summary, seen: Seen) -> None:
    learns_as_a_healthy_run(run, seen)


@with_options("--precision", "bf16")
def shows_loss_in_half(run: Summary, seen: Seen) -> None:
    learns_as_a_healthy_run(run, seen)


@with_options("--precision", "bf16")
def shows_sensitive_op_in_half(run: Summary, seen: Seen) -> None:
    learns_as_a_healthy_run(run, seen)


def shows_activation_casts(run: Summary, seen: Seen) -> None:
    learns_as_a_healthy_run(run, seen)


def shows_dtype_switched(run: Summary, seen: Seen) -> None:
    learns_as_a_healthy_run(run, seen)


def shows_stale_stack(run: Summary, seen: Seen) -> None:
    assert "2.1.2" == torch.__version__
    learns_as_a_healthy_run(run, seen)


def learns_as_a_healthy_run(run: Summary, seen: Seen) -> None:
    assert healthy(seen).val_loss == pytest.approx(run.val_loss, abs=0.05)


def below_autocast(module: torch.nn.Module, seen: Seen) -> torch.Tensor:
    """What it makes of four windows of 32 positions, or of eight images."""
    shape = {"gpt": (4, 32, 32), "cnn": (8, 16, 8, 8)}[arch(seen)]
    with torch.autocast("cpu", torch.float16):
        made = module(torch.ones(shape))
    assert isinstance(made, torch.Tensor)
    return made


def profiled(module: torch.nn.Module, seen: Seen) -> Any:
    """The operators of one forward pass."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        below_autocast(module, seen)
    return profile


def casts(module: torch.nn.Module, seen: Seen) -> int:
    """To half precision, while it runs once."""
    return sum(average.count for average in profiled(module, seen).key_averages() if average.key == "aten::_to_copy")


@pytest.mark.parametrize("arch", ["gpt", "cnn"])
@pytest.mark.parametrize("name", symptoms(globals()))
def test_the_fault_shows_its_symptoms(name: str, arch: str, check: Check) -> None:
    check(name, arch, symptoms(globals())[name])
