from __future__ import annotations

import math

import pytest
import torch

from model import GPT, Shape

SHAPE = Shape(vocabulary=128, context=32, layers=2, heads=2, width=32)


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(SHAPE)


def text(time: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    characters = torch.randint(SHAPE.vocabulary, (4, time + 1), generator=torch.Generator().manual_seed(0))
    return characters[:, :-1], characters[:, 1:]


def test_before_training_every_character_is_as_likely_as_any_other(model: GPT) -> None:
    assert math.log(SHAPE.vocabulary) == pytest.approx(model(*text()).item(), abs=0.1)


def test_the_loss_is_float32_under_autocast_too(model: GPT) -> None:
    with torch.autocast("cpu", torch.float16):
        assert model(*text()).dtype == torch.float32


def test_a_position_does_not_see_those_after_it(model: GPT) -> None:
    inputs, targets = text()
    ignored = targets.clone()
    ignored[:, 16:] = -100  # only the first half is asked for
    other = inputs.clone()
    other[:, 16:] = 7
    assert model(inputs, ignored).item() == pytest.approx(model(other, ignored).item(), abs=1e-6)


def test_every_weight_has_a_part_in_the_loss(model: GPT) -> None:
    model(*text()).backward()
    assert [] == [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]


def test_a_shorter_text_than_the_context_will_do(model: GPT) -> None:
    assert torch.isfinite(model(*text(time=5)))


def test_every_matmul_has_sizes_that_tensor_cores_take(model: GPT) -> None:
    odd = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and uneven(module)]
    assert [] == odd


def uneven(layer: torch.nn.Linear) -> bool:
    return bool(layer.in_features % 8 or layer.out_features % 8)


def test_the_size_is_the_number_of_weights(model: GPT) -> None:
    assert sum(weight.numel() for weight in model.state_dict().values()) == model.size()
