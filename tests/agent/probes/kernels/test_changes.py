"""A model that changes is counted again, within bounds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.probes.kernels import probe, reports
from ammeter.recording.schedule.bucket import UNLIMITED_SHARE
from ammeter.recording.schedule.budget import PRESETS
from tests.agent.networks import Network, train
from tests.agent.probes.kernels.networks import fallbacks, of
from tests.agent.training import Seen, watching


class Switched(torch.nn.Module):
    """Autocast can be switched off for the second half."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.low = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return self.last(x.float())  # type: ignore[no-any-return]


def test_a_census_is_told_again_when_the_share_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        PRESETS, "full", lambda budget: (UNLIMITED_SHARE, UNLIMITED_SHARE, UNLIMITED_SHARE, UNLIMITED_SHARE)
    )

    def before(step: int, network: Network) -> None:
        network.model.low = step < 4  # type: ignore[assignment]

    recorded = train(of(Switched()), tmp_path, before=before, dtype=torch.bfloat16, preset="full")
    assert [(1, 1.0), (4, 0.5)] == [
        (step, data["share"])
        for step, event, data in recorded.events
        if event == "kernels.census" and data["phase"] == "forward"
    ]
    assert [("addmm", "last", "autocast-disabled")] == fallbacks(recorded)


def test_fallbacks_that_are_told_are_bounded(tmp_path: Path) -> None:
    model = torch.nn.Sequential()
    for number in range(30):
        model.add_module(f"layer_{chr(97 + number % 26)}{number}x", torch.nn.Linear(9, 9))
    recorded = train(of(model, 9), tmp_path)
    assert reports.MAX_FALLBACKS == len(recorded.of("kernel.fallback"))


def trained(model: torch.nn.Module, steps: int, width: int, folder: Path) -> Seen:
    """A run with steps of 20 ms."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(folder, model, optimizer) as seen:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, width)).sum().backward()
            optimizer.step()
            time.sleep(0.02)
    return seen


class Widened(torch.nn.Module):
    """Its second layer leaves autocast from some call on."""

    def __init__(self, first_call: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.first_call, self.calls = first_call, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.first(x)
            if self.calls >= self.first_call:
                with torch.autocast("cpu", enabled=False):
                    x = self.last(x.float())
            else:
                x = self.last(x)
        self.calls += self.training
        return x


@pytest.mark.parametrize("first_call", [0, 40])
def test_a_layer_that_leaves_autocast_in_the_middle_of_a_run_is_counted(first_call: int, tmp_path: Path) -> None:
    seen = trained(Widened(first_call), 60, 16, tmp_path)
    found = {event.step: event.data for event in seen.events("kernel.fallback")}
    assert [("last", "autocast-disabled")] == [(data["module"], data["reason"]) for data in found.values()]
    assert first_call <= min(found) <= first_call + 2


class Restless(torch.nn.Module):
    """It enters another number of contexts in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.only, self.calls = torch.nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.calls % 10):
            with torch.autocast("cpu", torch.bfloat16):
                pass
        self.calls += 1
        output: torch.Tensor = self.only(x)
        return output


def test_models_that_enter_other_numbers_of_contexts_get_few_further_censuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[torch.nn.Module] = []
    original = probe.Kernels._open

    def noting(self: probe.Kernels, model: torch.nn.Module, *more: Any) -> None:
        opened.append(model)
        original(self, model, *more)

    monkeypatch.setattr(probe.Kernels, "_open", noting)
    monkeypatch.setattr("ammeter.recording.schedule.bucket.Bucket.allows", lambda self: False)
    trained(Restless(), 40, 8, tmp_path)
    assert probe.MAX_REQUESTED + sum(step < 40 for step in probe.LOOK_AGAIN_STEPS) == len(opened)


class SwitchedUnseen(torch.nn.Module):
    """From some call on autocast is off for the second layer, and no context shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.calls = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.first(x)
        if self.calls < FIRST_UNSEEN:
            return self.last(x)  # type: ignore[no-any-return]
        torch.set_autocast_enabled("cpu", False)
        x = self.last(x.float())
        torch.set_autocast_enabled("cpu", True)
        return x


FIRST_UNSEEN = 20


def test_a_change_that_no_context_shows_is_counted_when_the_census_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ammeter.recording.schedule.bucket.Bucket.allows", lambda self: False)
    model = SwitchedUnseen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(80):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(torch.randn(8, 16))
            output.float().sum().backward()
            optimizer.step()
            time.sleep(0.02)
    before, after = probe.LOOK_AGAIN_STEPS[:2]
    assert before < FIRST_UNSEEN < after
    assert [(after, "last")] == [(event.step, event.data["module"]) for event in seen.events("kernel.fallback")]
    assert [(before, 1.0), (after, 0.5)] == [
        (event.step, event.data["share"]) for event in seen.events("kernels.census")
    ]
