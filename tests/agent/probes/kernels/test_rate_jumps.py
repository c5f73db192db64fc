"""A learning rate that jumps after steady steps is a new phase; a warm-up, a decay and a restart are not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ammeter.probes.kernels import probe
from ammeter.probes.kernels.rate_jumps import RateJumps
from tests.agent.probes.kernels.test_changes import Switched
from tests.agent.training import Seen, watching


def jumps(rates: Sequence[float | None]) -> list[int]:
    watched = RateJumps()
    return [step for step, rate in enumerate(rates) if watched.jumps(rate)]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0.1] * 20 + [0.01] * 20 + [0.1], [20, 40]),
        ([0.1] * 20 + [None] * 9 + [0.05], [29]),
        ([0.1] * 20 + [0.0] + [0.05], [21]),
        ([0.1] * 8 + [0.01], []),
        ([0.1] * 9 + [0.01], [9]),
        ([0.1] * 20 + [0.08] * 20, []),
        ([step * 1e-5 for step in range(200)], []),
        ([0.1 * 0.97**step for step in range(200)], []),
        ([0.1, 0.2] * 40, []),
        ([None, None, 0.0], []),
    ],
    ids=["steps", "unread", "zero", "early", "steady", "small", "warm-up", "decay", "alternating", "none"],
)
def test_which_rates_jump(rates: Sequence[float | None], expected: list[int]) -> None:
    assert expected == jumps(rates)


def trained(folder: Path, changes: Sequence[int], steps: int, preset: str = "default") -> Seen:
    """Leaves autocast for a part of the model, and lowers the learning rate, in the same step; each step takes 4 ms."""
    model = Switched()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(folder, model, optimizer, preset=preset) as seen:
        for step in range(steps):
            time.sleep(0.004)
            if step in changes:
                optimizer.param_groups[0]["lr"] *= 0.5
                model.low = False
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(4, 8)).float().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return seen


def test_a_jump_is_followed_by_a_census(tmp_path: Path) -> None:
    seen = trained(tmp_path, [70], 80)
    assert ("autocast-disabled", True) == next(
        (event.data["reason"], 70 <= event.step <= 79) for event in seen.events("kernel.fallback")
    )


def test_the_preset_light_takes_none(tmp_path: Path) -> None:
    assert [] == trained(tmp_path, [70], 80, "light").events("kernel.fallback")


def test_jumps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    request = probe.Kernels._request

    def counted(kernels: probe.Kernels, is_wanted: bool) -> None:
        opened.extend([1] if is_wanted else [])
        request(kernels, is_wanted)

    monkeypatch.setattr(probe.Kernels, "_request", counted)
    trained(tmp_path, range(20, 120, 20), 130)
    assert probe.MAX_JUMPS == len(opened)
