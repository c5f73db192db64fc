from __future__ import annotations

import math

import pytest
import torch

import data
from cnn import CNN, Shape

SHAPE = Shape(classes=data.CLASSES, layers=2, width=16)


@pytest.fixture
def model() -> CNN:
    torch.manual_seed(0)
    return CNN(SHAPE)


def images(batch: int = 8, pixels: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return data.Images(batch, pixels, 0, torch.device("cpu")).batch(0)


def test_before_training_every_kind_is_about_as_likely_as_any_other(model: CNN) -> None:
    assert math.log(data.CLASSES) == pytest.approx(model(*images(64)).item(), abs=0.3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_is_float32_under_autocast_too(dtype: torch.dtype, model: CNN) -> None:
    with torch.autocast("cpu", dtype):
        assert model(*images()).dtype == torch.float32


def test_every_weight_has_a_part_in_the_loss(model: CNN) -> None:
    model(*images()).backward()
    assert [] == [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]


def test_where_nothing_is_trained_an_image_is_judged_by_itself(model: CNN) -> None:
    model.eval()
    shown, targets = images()
    alone = torch.stack([model(shown[n : n + 1], targets[n : n + 1]) for n in range(len(shown))])
    assert alone.mean().item() == pytest.approx(model(shown, targets).item(), abs=1e-5)


def test_the_weights_of_the_pooling_are_a_whole_image(model: CNN) -> None:
    weights = model.pool.weights(torch.randn(3, 64, 16))
    assert (3, 64, 1) == weights.shape
    assert torch.allclose(torch.ones(3, 1), weights.sum(1))


def test_an_image_of_any_size_will_do(model: CNN) -> None:
    assert torch.isfinite(model(*images(pixels=13)))


def test_every_product_in_a_block_has_sizes_that_tensor_cores_take(model: CNN) -> None:
    layers = [module for module in model.blocks.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [3 * SHAPE.layers] == [len(layers)]
    assert {0} == {size % 8 for layer in layers for size in (layer.in_channels, layer.out_channels)}


def test_the_size_is_the_number_of_weights(model: CNN) -> None:
    assert sum(weight.numel() for weight in model.parameters()) == model.size()
