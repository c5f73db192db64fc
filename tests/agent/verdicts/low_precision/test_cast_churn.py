"""cast-churn fires where weights are cast again within a pass, enough of them and for too little work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.frames import Hello
from tests.agent.stream_builder import TENSORS, Stream, warm
from tests.agent.stream_judgement import findings
from tests.agent.streams_kernels import census
from tests.agent.training import watching

WEIGHTS = 2 * sum(tensor.numel for tensor in TENSORS)
"""Bytes of all of them in half precision."""


def told(recast: float, stream: Stream | None = None, flops: int = 10**6, **more: Any) -> Stream:
    """A pass that casts so many times all weights again."""
    again = round(recast * WEIGHTS)
    more = {"flops_low": flops, "recast_bytes": again, "cast_bytes": again + 20480} | more
    return census(stream or warm(3), **more)


def found(stream: Stream) -> Finding:
    return findings(stream)["cast-churn"]


def test_it_says_how_often_and_what_to_look_for() -> None:
    finding = found(told(30.0))
    assert ("ticket", 2, 2) == (finding.severity, finding.first_step, finding.opened_step)
    assert "repeatedly: 88 % of the bytes cast are repeats" in finding.title
    assert "30.0 times the size of all weights in half precision (repeated: 154 KiB; all casts:" in finding.cause
    assert finding.fix.startswith("Remove cache_enabled=False and set_autocast_cache_enabled(False)")
    assert "enter torch.autocast once around the whole forward pass" in finding.fix
    assert (WEIGHTS, 30.0) == (finding.evidence["weights_half_bytes"], finding.evidence["times_all_weights"])


@pytest.mark.parametrize(
    ("uncached", "frozen", "reason", "begin"),
    [
        (1.0, 0.0, "off", "Remove cache_enabled=False"),
        (0.0, 1.0, "frozen", "Cast the frozen weights once"),
        (0.1, 0.1, "cleared", "Enter torch.autocast once around the whole forward pass"),
    ],
)
def test_the_reason_that_was_recorded_is_the_one_that_is_named(
    uncached: float, frozen: float, reason: str, begin: str
) -> None:
    again = round(30 * WEIGHTS)
    finding = found(told(30.0, uncached_bytes=round(uncached * again), frozen_bytes=round(frozen * again)))
    assert reason == finding.evidence["reason"]
    assert finding.fix.startswith(begin)
    assert " If " not in finding.fix


def test_a_small_module_used_twice_is_no_churn() -> None:
    assert {} == findings(told(0.49))
    assert {"cast-churn"} == set(findings(told(0.5)))


def test_with_a_large_batch_it_does_not_matter() -> None:
    casts = round(0.5 * WEIGHTS) * 3 * 139
    assert {} == findings(told(0.5, flops=11 * casts))
    assert {"cast-churn"} == set(findings(told(0.5, flops=9 * casts)))


def test_casts_that_are_no_weights_cast_again_and_the_way_back_do_not_count() -> None:
    assert {} == findings(told(0.0, cast_bytes=10**9))
    assert {} == findings(told(30.0, phase="backward"))


def test_of_a_sharded_model_the_weights_of_all_ranks_count() -> None:
    stream = told(3.0)
    first = stream.frames[0]
    assert isinstance(first, Hello)
    sharded = tuple(replace(tensor, copies=1) for tensor in TENSORS)
    stream.frames[0] = replace(first, world_size=8, schema=replace(first.schema, tensors=sharded))
    assert {} == findings(stream)


def test_it_is_told_once() -> None:
    assert 1 == found(told(9.0, told(30.0).good(65536))).times


class Recurrent(torch.nn.Module):
    """One cell, sixteen times; with keeps=False below an autocast without a cache."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.cell, self.keeps = torch.nn.Linear(64, 64), keeps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=self.keeps):
            for _ in range(16):
                x = torch.tanh(self.cell(x))
        return x


@pytest.mark.parametrize(("keeps", "expected"), [(False, {"cast-churn"}), (True, set())])
def test_a_cell_without_a_cache_is_found_in_a_real_run(keeps: bool, expected: set[str], tmp_path: Path) -> None:
    model = Recurrent(keeps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(4):
            model(torch.randn(8, 64)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    findings = seen.findings()
    assert expected == set(findings)
    assert all(15.0 == finding.evidence["times_all_weights"] for finding in findings.values())
