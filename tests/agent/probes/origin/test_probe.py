from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.networks import NETWORKS, Mask, Network, convolutions, custom, normal, train

NAN = float("nan")


def origins(told: Any) -> list[tuple[int, str, str, str]]:
    """(step, kind, module, confidence) of each origin that was told, other than those in the graph of a loss."""
    found = [(step, data) for step, name, data in told.events if name == "origin.found"]
    return [
        (step, data["kind"], data["module"], data["confidence"])
        for step, data in found
        if data["confidence"] != "graph"
    ]


def outside_graphs(told: Any) -> list[dict[str, Any]]:
    return [found for found in told.of("origin.found") if found["confidence"] != "graph"]


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
            network.kwargs = {name: _poison(value) for name, value in network.kwargs.items()}

    recorded = train(make, tmp_path, before=before, dtype=dtype)
    assert (4, "input", "", "inputs") == origins(recorded)[0]
    found = recorded.of("origin.found")[0]
    assert (argument, 1, 0, 2, "float32", 0) == tuple(
        found[name] for name in ("input", "nans", "infs", "sample", "dtype", "since")
    )
    assert math.isfinite(found["absmax"])


@pytest.mark.parametrize(("make", "argument"), [(normal, "x"), (convolutions, "image")])
def test_an_input_that_float16_does_not_have_is_told_with_the_operator_that_receives_it(
    make: Any, argument: str, tmp_path: Path
) -> None:
    def before(step: int, network: Network) -> None:
        if step == 4:
            network.args = tuple(value * 1e6 for value in network.args)
            network.kwargs = {name: value * 1e6 for name, value in network.kwargs.items()}

    found = train(make, tmp_path, before=before).of("origin.found")[0]
    assert ("forward", "constant", "float16", argument) == tuple(
        found[name] for name in ("kind", "reason", "dtype", "input")
    )
    assert 65504 < found["beyond_float16"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_module_whose_output_is_not_finite_is_named_by_hooks(name: str, seed: int, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 3:
            layer = network.model.get_submodule(network.layer)
            layer.register_forward_hook(lambda module, args, output: output * 1e30)

    recorded = train(NETWORKS[name], tmp_path, before=before, seed=seed)
    layer = NETWORKS[name]().layer
    assert [(4, "forward", layer, "hooks")] == origins(recorded)
    (found,) = outside_graphs(recorded)
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

    recorded = train(NETWORKS[name], tmp_path, before=before)
    layer = NETWORKS[name]().layer
    assert [(4, "weights", layer, "hooks")] == origins(recorded)
    assert f"{layer}.weight" == recorded.of("origin.found")[0]["tensor"]


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
    recorded = train(lambda: _with_overflow(at), tmp_path)
    assert (0, "backward", str(at - 1), "frontier") == origins(recorded)[0]
    assert f"{at - 1}.bias" == recorded.of("origin.found")[0]["tensor"]
    assert [(2, "backward", str(at), "hooks")] == origins(recorded)[1:]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_gradient_that_goes_wrong_at_the_weight_itself_is_named_there(name: str, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 3:
            weight = network.model.get_submodule(network.layer).weight
            weight.register_hook(lambda gradient: gradient * math.inf)  # type: ignore[operator]

    recorded = train(NETWORKS[name], tmp_path, before=before)
    layer = NETWORKS[name]().layer
    ((step, kind, module, confidence),) = origins(recorded)
    assert ("backward", layer) == (kind, module)
    assert step == (5 if confidence == "hooks" else 3)  # the first weight of a model has no finite one before it
    assert f"{layer}.weight" == recorded.of("origin.found")[0]["tensor"]


def test_a_loss_that_is_not_finite_without_a_skip_is_looked_into_with_the_next_step(tmp_path: Path) -> None:
    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        return loss + (loss.detach() * NAN if step >= 3 else 0)

    recorded = train(normal, tmp_path, spoil=spoil)
    assert [0.0] * 8 == recorded.rows.scalar("skipped").tolist()
    assert [(4, "forward", "", "hooks")] == origins(recorded)


def test_in_backward_the_module_itself_is_named_by_hooks(tmp_path: Path) -> None:
    recorded = train(lambda: _with_overflow(4), tmp_path)
    assert [(2, "backward", "4", "hooks")] == origins(recorded)
    (found,) = outside_graphs(recorded)
    assert ("Overflow", "OverflowingBackward", "backward") == (found["class"], found["op"], found["direction"])
    assert found["absmax"] > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_a_loss_that_is_not_finite_behind_a_finite_model_is_told_as_such(name: str, tmp_path: Path) -> None:
    recorded = train(NETWORKS[name], tmp_path, spoil=lambda step, loss: loss * NAN if step >= 3 else loss)
    assert [(4, "forward", "", "hooks")] == origins(recorded)
    assert "loss" == outside_graphs(recorded)[0]["op"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_without_a_scaler_a_loss_that_is_not_finite_is_looked_into(dtype: Any, tmp_path: Path) -> None:
    recorded = train(normal, tmp_path, dtype=dtype, spoil=lambda step, loss: loss * NAN if step == 3 else loss)
    assert [(4, "weights", "first", "hooks")] == origins(recorded)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_healthy_run_tells_nothing_and_its_masks_are_no_origin(name: str, tmp_path: Path) -> None:
    recorded = train(NETWORKS[name], tmp_path)
    assert [] == [event for _, event, _ in recorded.events if event.startswith(("origin.", "activation."))]


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

    recorded = train(lambda: Network(Scores(), (torch.randn(5, 5),), {}, "first"), tmp_path, before=before)
    assert [(4, "forward", "softmax", "hooks")] == origins(recorded)
    assert "SoftmaxBackward0" == outside_graphs(recorded)[0]["op"]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("preset", ["default", "full"])
def test_a_run_whose_modules_are_looked_at_ends_in_the_same_bits(name: str, preset: str, tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 2:
            network.args = tuple(map(_poison, network.args))
            network.kwargs = {key: _poison(value) for key, value in network.kwargs.items()}
        if step == 4:
            network.args = tuple(arg.nan_to_num() for arg in network.args)
            network.kwargs = {key: value.nan_to_num() for key, value in network.kwargs.items()}

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

    recorded = train(convolutions, tmp_path, before=before, spoil=lambda step, loss: loss * NAN if step == 0 else loss)
    (peaks,) = recorded.of("activation.peaks")
    assert {"module": "body", "absmax": 32752.0, "share": 0.5} in peaks["modules"]
    shares = [peak["share"] for peak in peaks["modules"]]
    assert sorted(shares, reverse=True) == shares


def test_the_value_that_masks_scores_is_no_peak(tmp_path: Path) -> None:
    def before(step: int, network: Network) -> None:
        if step == 0:
            layer = network.model.get_submodule("body")
            least = torch.finfo(torch.float16).min
            layer.register_forward_hook(lambda module, args, output: output.masked_fill(output > 0, least) + 1)

    recorded = train(convolutions, tmp_path, before=before, spoil=lambda step, loss: loss * NAN if step == 0 else loss)
    (peaks,) = recorded.of("activation.peaks")
    assert max(peak["share"] for peak in peaks["modules"]) < 0.5
