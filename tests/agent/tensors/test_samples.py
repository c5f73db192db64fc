"""Samples of tensors: how many elements, and that they say what all elements say."""

from __future__ import annotations

import pytest
import torch

from ammeter.tensors.samples import MAX_FACTOR, MAX_TENSOR_ELEMENTS, Sample, samples


def sample(tensor: torch.Tensor, zeros: float = 0, turn: int = 0) -> Sample:
    (only,) = samples([tensor], [zeros], turn)
    return only


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_a_small_tensor_is_copied_completely(dtype: torch.dtype) -> None:
    tensor = torch.randn(100, 99).to(dtype)
    copied = sample(tensor)
    assert torch.equal(tensor.reshape(-1).float(), copied.values)
    assert 9900 == copied.elements


@pytest.mark.parametrize("elements", [16_385, 23_000, 30_000, 65_536, 999_999, 10_000_000])
def test_the_number_of_copied_elements_is_bounded(elements: int) -> None:
    for turn in range(4):
        copied = sample(torch.ones(1).expand(elements), turn=turn)
        assert 0.65 * MAX_TENSOR_ELEMENTS <= len(copied.values) <= 1.6 * MAX_TENSOR_ELEMENTS
        assert elements == copied.elements


@pytest.mark.parametrize("shape", [(1024, 512), (4096, 4096), (77, 16_384), (500_000, 3)])
def test_a_sample_has_as_many_elements_of_each_column_and_row(shape: tuple[int, int]) -> None:
    rows, columns = shape
    for numbers, length in ((torch.arange(columns), columns), (torch.arange(rows)[:, None], rows)):
        sixteenths = (numbers * 16 // length).float().expand(shape)
        expected, counts = (shares_of(parts) for parts in (sixteenths, sample(sixteenths).values))
        assert expected.tolist() == pytest.approx(counts.tolist(), abs=0.01)


def shares_of(numbers: torch.Tensor) -> torch.Tensor:
    return torch.bincount(numbers.reshape(-1).int(), minlength=16) / numbers.numel()


def test_each_turn_copies_other_elements() -> None:
    tensor = torch.arange(1_000_000.0)
    first, second = (set(sample(tensor, turn=turn).values.tolist()) for turn in (1, 2))
    assert len(first & second) < 0.1 * len(first)
    assert first == set(sample(tensor, turn=1).values.tolist())


@pytest.mark.parametrize("layout", ["transposed", "channels-last", "every second"])
def test_the_layout_does_not_matter(layout: str) -> None:
    whole = torch.randn(64, 32, 16, 16)
    tensor = {
        "transposed": whole.reshape(2048, 256).t(),
        "channels-last": whole.to(memory_format=torch.channels_last),
        "every second": whole[::2],
    }[layout]
    assert torch.isin(sample(tensor).values, tensor).all()
    assert tensor.numel() == sample(tensor).elements


def test_rows_of_zeros_are_not_sampled() -> None:
    gradient = torch.zeros(20_000, 64)
    rows = torch.randperm(20_000)[:100]
    gradient[rows] = torch.randn(100, 64)
    copied = sample(gradient, float((gradient == 0).sum()))
    assert 6400 == copied.elements == len(copied.values)
    assert gradient[rows].abs().sum().item() == pytest.approx(copied.values.abs().sum().item(), rel=1e-4)


def test_more_is_copied_where_zeros_are_spread() -> None:
    gradient = torch.randn(2000, 1000) * (torch.rand(2000, 1000) < 0.2)
    zeros = float((gradient == 0).sum())
    nonzero = int((sample(gradient, zeros).values != 0).sum())
    assert 0.6 * MAX_TENSOR_ELEMENTS < nonzero < 1.7 * MAX_TENSOR_ELEMENTS
    sparse = torch.zeros(2000, 1000)
    sparse[:, 0] = 1
    assert len(sample(sparse, 2000 * 999).values) <= 1.6 * MAX_FACTOR * MAX_TENSOR_ELEMENTS


def test_only_zeros_are_sampled_like_anything_else() -> None:
    assert 100_000 == sample(torch.zeros(100_000), 100_000).elements
