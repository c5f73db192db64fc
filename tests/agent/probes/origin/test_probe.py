from __future__ import annotations

import copy
import math
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import ammeter
from ammeter.probes.origin import hook_windows
from ammeter.probes.origin.visits import Visits
from tests.agent.networks import NETWORKS, Mask, Network, convolutions, custom, normal, train
from tests.agent.training import stream

NAN = float("nan")


def origins(told: Any) -> list[tuple[int, str, str, str]]:
    """(step, kind, module, confidence) of each origin that was told."""
    return [
        (step, data["kind"], data["module"], data["confidence"])
        for step, name, data in told.events
        if name == "origin.found"
    ]


def _poison(what: Any) -> Any:
    """The same nested value with a NaN in the third sample of each floating-point tensor."""
    if isinstance(what, torch.Tensor) and what.is_floating_point():
        what = what.clone()
        what[2].view(-1)[0] = NAN
    return what


@pytest.mark.parametrize(("make", "argument"), [(normal, "x"), (convolutions, "image"), (custom, "x")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, None])
def test_a_nan_in_an_input_is_found_in_the_very_step(make: Any, argument: str, dtype: Any, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 4:
            network.args = tuple(map(_poison, network.args))
            network.kwargs = {name: _poison(each) for name, each in network.kwargs.items()}

    told = train(make, tmp_path, before=before, dtype=dtype)
    assert (4, "input", "", "inputs") == origins(told)[0]
    found = told.of("origin.found")[0]
    assert (argument, 1, 0, 2, "float32", 0) == tuple(
        found[name] for name in ("input", "nans", "infs", "sample", "dtype", "since")
    )
    assert math.isfinite(found["absmax"])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_whose_output_is_not_finite_is_named_by_hooks(name: str, seed: int, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 3:
            layer = network.model.get_submodule(network.layer)
            layer.register_forward_hook(lambda module, args, output: output * 1e30)

    told = train(NETWORKS[name], tmp_path, before=before, seed=seed)
    layer = NETWORKS[name]().layer
    assert [(4, "forward", layer, "hooks")] == origins(told)
    (found,) = told.of("origin.found")
    assert ("float16", "forward", 1) == (found["dtype"], found["direction"], found["since"])
    assert found["infs"] > 0
    assert 0 < found["absmax"] < 65504
    assert layer == found["last"][-1]["module"]
    assert {"MulBackward0"} == {found["op"]}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_weight_that_is_not_finite_is_named(name: str, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 3:
            with torch.no_grad():
                network.model.get_submodule(network.layer).weight.view(-1)[5] = math.inf  # type: ignore[operator]

    told = train(NETWORKS[name], tmp_path, before=before)
    layer = NETWORKS[name]().layer
    assert [(4, "weights", layer, "hooks")] == origins(told)
    assert f"{layer}.weight" == told.of("origin.found")[0]["tensor"]


class Overflowing(torch.autograd.Function):
    """Finite in forward, Inf in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * math.inf


class Overflow(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Overflowing.apply(x)  # type: ignore[no-untyped-call]
        return found


def _with_overflow(at: int) -> Network:
    layers: list[torch.nn.Module] = [torch.nn.Linear(6, 6) for _ in range(4)]
    layers.insert(at, Overflow())
    return Network(torch.nn.Sequential(*layers), (torch.randn(4, 6),), {}, "0")


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_frontier_of_the_gradients_names_the_module_before_at_once(at: int, tmp_path: Path) -> None:
    told = train(lambda: _with_overflow(at), tmp_path)
    assert (0, "backward", str(at - 1), "frontier") == origins(told)[0]
    assert f"{at - 1}.bias" == told.of("origin.found")[0]["tensor"]
    assert [(2, "backward", str(at), "hooks")] == origins(told)[1:]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_gradient_that_goes_wrong_at_the_weight_itself_is_named_there(name: str, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 3:
            weight = network.model.get_submodule(network.layer).weight
            weight.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[operator]

    told = train(NETWORKS[name], tmp_path, before=before)
    layer = NETWORKS[name]().layer
    ((step, kind, module, confidence),) = origins(told)
    assert ("backward", layer) == (kind, module)
    assert step == (5 if confidence == "hooks" else 3)  # the first weight of a model has no finite one before it
    assert f"{layer}.weight" == told.of("origin.found")[0]["tensor"]


def test_a_loss_that_is_not_finite_without_a_skip_is_looked_into_with_the_next_step(tmp_path: Path) -> None:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss + (loss.detach() * NAN if step >= 3 else 0)

    told = train(normal, tmp_path, spoil=spoil)
    assert [0.0] * 8 == told.rows.scalar("skipped").tolist()
    assert [(4, "forward", "", "hooks")] == origins(told)


def test_in_backward_the_module_itself_is_named_by_hooks(tmp_path: Path) -> None:
    told = train(lambda: _with_overflow(4), tmp_path)
    assert [(2, "backward", "4", "hooks")] == origins(told)
    (found,) = told.of("origin.found")
    assert ("Overflow", "OverflowingBackward", "backward") == (found["class"], found["op"], found["direction"])
    assert found["absmax"] > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loss_that_is_not_finite_behind_a_finite_model_is_told_as_such(name: str, tmp_path: Path) -> None:
    told = train(NETWORKS[name], tmp_path, spoil=lambda step, loss: loss * NAN if step >= 3 else loss)
    assert [(4, "forward", "", "hooks")] == origins(told)
    assert "loss" == told.of("origin.found")[0]["op"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_without_a_scaler_a_loss_that_is_not_finite_is_looked_into(dtype: Any, tmp_path: Path) -> None:
    told = train(normal, tmp_path, dtype=dtype, spoil=lambda step, loss: loss * NAN if step == 3 else loss)
    assert [(4, "weights", "first", "hooks")] == origins(told)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_healthy_run_tells_nothing_and_its_masks_are_no_origin(name: str, tmp_path: Path) -> None:
    told = train(NETWORKS[name], tmp_path)
    assert [] == [event for _, event, _ in told.events if event.startswith(("origin.", "activation."))]


class Scores(torch.nn.Module):
    """Attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 5)
        self.mask = Mask()
        self.softmax = torch.nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.softmax(self.first(x) + self.mask(x[None]))
        return found


def test_a_mask_is_not_named_for_a_nan_that_is_born_behind_it(tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        network.model.get_submodule("mask").diagonal = 0 if step >= 3 else 1  # type: ignore[assignment]

    told = train(lambda: Network(Scores(), (torch.randn(5, 5),), {}, "first"), tmp_path, before=before)
    assert [(4, "forward", "softmax", "hooks")] == origins(told)
    assert "SoftmaxBackward0" == told.of("origin.found")[0]["op"]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("preset", ["default", "full"])
def test_a_run_whose_modules_are_looked_at_ends_in_the_same_bits(name: str, preset: str, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 2:
            network.args = tuple(map(_poison, network.args))
            network.kwargs = {key: _poison(each) for key, each in network.kwargs.items()}
        if step == 4:
            network.args = tuple(each.nan_to_num() for each in network.args)
            network.kwargs = {key: each.nan_to_num() for key, each in network.kwargs.items()}

    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss * math.inf if step in (5, 6) else loss

    bare = train(NETWORKS[name], None, steps=14, before=before, spoil=spoil)
    watched = train(NETWORKS[name], tmp_path, steps=14, before=before, spoil=spoil, preset=preset)
    assert repr(bare.state) == repr(watched.state)
    assert [] != watched.of("activation.peaks")


def test_peaks_name_the_modules_nearest_to_the_largest_float16(tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 0:
            layer = network.model.get_submodule("body")
            layer.register_forward_hook(lambda module, args, output: output * 0 + 32752)

    told = train(convolutions, tmp_path, before=before, spoil=lambda step, loss: loss * NAN if step == 0 else loss)
    (peaks,) = told.of("activation.peaks")
    assert {"module": "body", "absmax": 32752.0, "share": 0.5} in peaks["modules"]
    shares = [each["share"] for each in peaks["modules"]]
    assert sorted(shares, reverse=True) == shares


def _hooks_of(model: torch.nn.Module) -> int:
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


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

    told = train(normal, tmp_path, steps=30, before=before, spoil=spoil)
    assert [(21, "forward", normal().layer, "hooks")] == [each for each in origins(told) if each[1] == "forward"]


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
    told = [(each.step, each.name) for each in frames if getattr(each, "name", "").startswith(("origin", "activation"))]
    assert [(2, "activation.peaks")] == told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", [False, True])
def test_of_a_compiled_model_it_is_told_that_it_cannot_be_known(whole: bool, tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = normal()
    optimizer = torch.optim.SGD(network.model.parameters(), lr=0.1)
    run = ammeter.watch(network.model, optimizer, dir=tmp_path)
    bare = network.model
    network.model = cast(torch.nn.Module, torch.compile(bare, backend="eager"))
    loss = torch.compile(lambda x: bare(x).square().mean(), backend="eager") if whole else None
    for _ in range(4):
        optimizer.zero_grad()
        found = loss(*network.args) if loss else network.loss()
        (found * NAN).backward()
        optimizer.step()
    run.close()
    assert 0 == _hooks_of(bare)
    torch._dynamo.reset()
    _, frames = stream(run.id, tmp_path)
    (unknown,) = [each.data for each in frames if getattr(each, "name", "") == "origin.unknown"]
    assert ("unheard" if whole else "compiled") == unknown["reason"]
