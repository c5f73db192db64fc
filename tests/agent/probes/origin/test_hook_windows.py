"""Hooks are on the modules in few windows, and gone after them."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import ammeter
from ammeter.probes.origin import hook_windows
from ammeter.probes.origin.visits import Visits
from tests.agent.networks import Network, normal, train
from tests.agent.probes.origin.test_probe import NAN, origins
from tests.agent.training import Model, stream


def _hooks_of(model: torch.nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_hooks_are_on_the_modules_in_a_forward_pass_of_the_window_only(tmp_path: Path) -> None:
    seen: list[int] = []

    class Looking(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(_hooks_of(self))
            return super().forward(x)

    model = torch.nn.Sequential(Looking(4, 3))
    between: list[int] = []

    def before(step: int, network: Network) -> None:
        between.append(_hooks_of(network.model))
        copy.deepcopy(network.model)

    train(
        lambda: Network(model, (torch.randn(3, 4),), {}, "0"),
        tmp_path,
        steps=12,
        preset="light",
        before=before,
        spoil=lambda step, loss: loss * NAN if step == 2 else loss,
    )
    assert [0] * 12 == between
    assert [0, 0, 0, 2, 2, 2, 2, 2, 0, 0, 0, 0] == seen


def test_a_model_that_raises_in_a_window_is_left_without_hooks(tmp_path: Path) -> None:
    network = normal()
    optimizer = torch.optim.SGD(network.model.parameters(), lr=0.1)
    run = ammeter.watch(network.model, optimizer, dir=tmp_path)
    for _ in range(2):
        optimizer.zero_grad()
        (network.loss() * NAN).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        network.model(torch.ones(3, 5))
    assert 0 == _hooks_of(network.model)
    run.close()


def test_hooks_go_when_the_probe_has_a_fault_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Visits, *_: Any) -> None:
        raise ValueError("began wrong")

    monkeypatch.setattr(Visits, "_began", wrong)
    kept: list[torch.nn.Module] = []
    with pytest.raises(AssertionError):  # the loop looks for faults
        train(
            normal,
            tmp_path,
            before=lambda step, network: kept.append(network.model),
            spoil=lambda step, loss: loss * NAN,
        )
    assert 0 == _hooks_of(kept[0])


def test_a_nan_that_stays_opens_few_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_windows, "MIN_DISTANCE_STEPS", 20)
    windows: list[int] = []

    def before(step: int, network: Network) -> None:
        if step == 0:
            network.model[0].register_forward_hook(  # type: ignore[index]
                lambda module, *_: windows.append(step_now[0]) if len(module._forward_hooks) > 1 else None
            )
        step_now[0] = step

    step_now = [0]
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    train(
        lambda: Network(model, (torch.randn(3, 4),), {}, "0"),
        tmp_path,
        steps=300,
        preset="light",
        before=before,
        spoil=lambda step, loss: loss * NAN,
    )
    assert hook_windows.MAX_WINDOWS * hook_windows.WINDOW_STEPS == len(windows)
    begins = [step for step in windows if step - 1 not in windows]
    assert hook_windows.MAX_WINDOWS == len(begins)
    assert all(later - sooner >= 20 for sooner, later in pairwise(begins))


def test_a_single_bad_step_does_not_keep_the_next_trouble_waiting(tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 20:
            layer = network.model.get_submodule(network.layer)
            layer.register_forward_hook(lambda module, args, output: output * 1e30)

    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * NAN if step == 3 else loss

    recorded = train(normal, tmp_path, steps=30, before=before, spoil=spoil)
    assert [(21, "forward", normal().layer, "hooks")] == [
        origin for origin in origins(recorded) if origin[1] == "forward"
    ]


def test_a_directive_opens_a_window_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = normal()
    optimizer = torch.optim.SGD(network.model.parameters(), lr=0.1)
    run = ammeter.watch(network.model, optimizer, dir=tmp_path)
    (folder,) = (tmp_path / run.id).glob("*/")
    (folder / "directives").write_text('[{"arm": "origin", "steps": 3}]')
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            network.loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    run.close()
    _, frames = stream(run.id, tmp_path)
    told = [
        (frame.step, frame.name) for frame in frames if getattr(frame, "name", "").startswith(("origin", "activation"))
    ]
    assert [(3, "activation.peaks")] == told  # it arrives in the first step


class Spoiled(Model):
    """Its output becomes NaN inside the compiled code, of which the graph has one operator only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * NAN


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", [False, True])
def test_of_a_compiled_model_it_is_told_that_it_cannot_be_known(whole: bool, tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = normal()
    network.model = Spoiled()
    optimizer = torch.optim.SGD(network.model.parameters(), lr=0.1)
    run = ammeter.watch(network.model, optimizer, dir=tmp_path)
    bare = network.model
    network.model = cast(torch.nn.Module, torch.compile(bare, backend="aot_eager"))
    loss = torch.compile(lambda x: bare(x).square().mean(), backend="aot_eager") if whole else None
    for _ in range(4):
        optimizer.zero_grad()
        found = loss(*network.args) if loss else network.loss()
        found.backward()
        optimizer.step()
    run.close()
    assert 0 == _hooks_of(bare)
    torch._dynamo.reset()
    _, frames = stream(run.id, tmp_path)
    (unknown,) = [frame.data for frame in frames if getattr(frame, "name", "") == "origin.unknown"]
    assert ("unheard" if whole else "compiled") == unknown["reason"]
