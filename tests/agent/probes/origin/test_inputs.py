"""The inputs of a model that are told as an origin, and those that are not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.probes.origin.inputs import Inputs
from tests.agent.training import Seen, watching

NAN, INF = math.nan, math.inf


class Net(torch.nn.Module):
    def forward(self, image: torch.Tensor, *rest: Any, mask: Any = None) -> torch.Tensor:
        return image


def looked(*args: Any, **kwargs: Any) -> Any:
    inputs, model = Inputs(), Net()
    inputs.remember(model, args, kwargs, 0)
    inputs.read()
    found = inputs.first_nonfinite()
    return found and (found["input"], found["nans"], found["infs"], found["sample"])


BAD = torch.tensor([[0.0, 0.0], [NAN, INF]])


def test_the_argument_that_is_not_finite_is_named() -> None:
    assert ("image", 1, 1, 1) == looked(BAD)
    assert ("args[2]", 1, 1, 1) == looked(torch.ones(2), 5, BAD)
    assert ("mask['deep'][0]", 1, 1, 1) == looked(torch.ones(2), mask={"deep": [BAD]})
    assert looked(torch.ones(2), torch.arange(3)) is None


def test_the_infinities_of_a_mask_are_no_fault_of_the_input() -> None:
    assert looked(torch.ones(2), torch.full((2, 2), -INF).triu(1)) is None


def test_inputs_are_held_weakly_and_not_trusted_after_a_change_in_place() -> None:
    inputs, model = Inputs(), Net()
    gone, changed = BAD.clone(), BAD.clone()
    inputs.remember(model, (gone, changed), {}, 0)
    del gone
    changed.add_(1)
    inputs.read()
    assert inputs.first_nonfinite() is None


@pytest.mark.parametrize(
    ("before", "backwards", "expected"),
    [
        ((0, 1, 2), 3, 1),
        ((0, 0, 0), 1, 0),
        ((0, 0, 0), 3, None),  # all forward passes came before the first backward pass
        ((0, 0, 1), 2, 0),
    ],
)
def test_the_micro_batch_is_counted_by_backward_passes(
    before: tuple[int, ...], backwards: int, expected: int | None
) -> None:
    inputs, model, kept = Inputs(), Net(), [torch.ones(2), BAD, BAD.clone()]
    for done, tensor in zip(before, kept, strict=True):
        inputs.remember(model, (tensor,), {}, done)
    inputs.read()
    found = inputs.first_nonfinite(backwards)
    assert found is not None
    assert expected == found["micro_batch"]


def test_what_another_model_made_is_no_input() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert looked(BAD * weight) is None
    assert ("image", 1, 1, 1) == looked(BAD.clone().requires_grad_())
    assert looked(torch.nn.Parameter(BAD)) is None


def test_an_argument_that_is_bad_in_good_steps_does_not_count() -> None:
    inputs, model = Inputs(), Net()
    inputs.remember(model, (BAD,), {}, 0)
    inputs.read()
    assert frozenset({(0, "")}) == inputs.nonfinite()
    assert inputs.first_nonfinite(1, inputs.nonfinite()) is None


def _found(seen: Seen) -> list[dict[str, Any]]:
    return [event.data for event in seen.events("origin.found")]


class Imputing(torch.nn.Module):
    """Replaces NaN in its input, and divides its output."""

    def __init__(self) -> None:
        super().__init__()
        self.fill, self.layer, self.divisor = torch.nn.Parameter(torch.zeros(4)), torch.nn.Linear(4, 1), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.where(torch.isnan(x), self.fill.expand_as(x), x)
        output: torch.Tensor = self.layer(x).tanh() / self.divisor
        return output


@pytest.mark.parametrize("always", [True, False])
def test_an_input_that_the_model_imputes_is_not_blamed(always: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Imputing()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(12):
            x = torch.randn(6, 4)
            model.divisor = 0.0 if step == 8 else 1.0
            if always or step == 8:
                x[1, 2] = NAN
            loss = (model(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 8:
                break
    found = _found(seen)[0]
    assert ("forward", "DivBackward0") == (found["kind"], found["op"])


class Coding(torch.nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first, self.second, self.gain = torch.nn.Linear(width, 8), torch.nn.Linear(8, out), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second(torch.relu(self.first(x)) * self.gain)
        return output


@pytest.mark.parametrize("detach", [True, False])
def test_the_output_of_another_model_is_not_blamed_by_hooks(detach: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    encoder, decoder = Coding(4, 6), Coding(6, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.001)
    with watching(tmp_path, [encoder, decoder], optimizer) as seen:
        for step in range(16):
            x = torch.randn(6, 4)
            encoder.gain = INF if step >= 8 else 1.0
            code = encoder(x)
            loss = (decoder(code.detach() if detach else code) - x).square().mean() + code.square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_value_([*encoder.parameters(), *decoder.parameters()], 1.0)
            optimizer.step()
            for weight in (*encoder.parameters(), *decoder.parameters()):
                weight.data.nan_to_num_(0.01)
    by_hooks = [found for found in _found(seen) if found["confidence"] == "hooks"]
    assert ["model0."] == [found["module"] for found in by_hooks]
    assert {"forward"} == {found["kind"] for found in by_hooks}
