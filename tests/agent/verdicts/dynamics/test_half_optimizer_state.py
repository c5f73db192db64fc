"""half-optimizer-state fires with the first census that finds it, and ends with one that does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_builder import Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_values import census
from tests.agent.training import watching


def found(stream: Stream) -> Finding:
    return findings(stream)["half-optimizer-state"]


def test_it_opens_with_the_census_that_shows_it() -> None:
    assert {} == findings(census(warm(3), {}))
    finding = found(census(warm(3), {"bfloat16": 1500, "float32": 500}, names=("exp_avg", "exp_avg_sq")))
    assert ("ticket", 2, 2) == (finding.severity, finding.first_step, finding.opened_step)
    assert "The optimizer's state is in bfloat16" == finding.title
    assert (
        "The optimizer's state is in half precision (75 %, 1500 of 2000 numbers: exp_avg and exp_avg_sq)"
        in finding.cause
    )
    assert "(1 - beta2) = 0.001 by default per step, which is less than bfloat16's rounding limit" in finding.cause
    assert "Remove the cast of exp_avg and exp_avg_sq to bfloat16" in finding.fix


def test_the_decay_of_the_run_decides_what_is_rounded_away() -> None:
    stream = warm(3)
    environment = {"optimizer": "AdamW", "optimizer.betas": "(0.9, 0.95)"}
    stream.frames[0] = msgspec.structs.replace(stream.frames[0], environment=environment)
    finding = found(census(stream, {"bfloat16": 9}, names=("exp_avg", "exp_avg_sq")))
    assert "AdamW's state is in bfloat16" == finding.title
    assert "does not fall again" not in finding.cause
    assert "it cannot hold a change by less than 0.002 to 0.004 of a number" in finding.cause


def test_in_float16_the_range_is_the_reason() -> None:
    assert (
        "it stays zero for gradients below 0.005" in found(census(warm(3), {"float16": 9}, names=("square_avg",))).cause
    )


@pytest.mark.parametrize("names", [(), ("exp_avg",), ("momentum_buffer",)])
def test_without_a_second_moment_in_half_precision_none_is_mentioned(names: tuple[str, ...]) -> None:
    cause = found(census(warm(3), {"bfloat16": 9}, names=names)).cause
    assert "second moment" not in cause
    assert "it cannot hold a change by less than 0.002 to 0.004 of a number" in cause


def test_where_the_weights_are_half_too_the_state_follows_them() -> None:
    fix = found(census(warm(3), {"bfloat16": 9}, weights="bfloat16")).fix
    assert "Keep the trained weights in float32" in fix


def test_a_small_part_keeps_it_silent() -> None:
    assert {} == findings(census(warm(3), {"float32": 960, "bfloat16": 40}))


def test_a_later_census_in_float32_ends_it_and_one_without_state_does_not() -> None:
    stream = census(warm(3), {"bfloat16": 9})
    assert found(census(stream, {})).active
    assert not found(census(stream.good(65536), {"float32": 9})).active


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_real_optimizer_that_keeps_its_moments_in_half_is_named(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.register_step_pre_hook(lambda stepped, *_: cast(stepped, torch.float32))
    optimizer.register_step_post_hook(lambda stepped, *_: cast(stepped, dtype))
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(5):
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    findings = seen.findings()
    assert ({"half-optimizer-state"} if dtype is torch.bfloat16 else set()) == set(findings)


def cast(optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
    for state in optimizer.state.values():
        state |= {name: value.to(dtype) for name, value in state.items() if value.dim()}
