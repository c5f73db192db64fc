"""The numbers that replicas have in common: bits of gradients, and a checksum of the weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ammeter.probes.weights.replicas import significant_bits

ELEMENTS = 2**14


def numbers(seed: int = 0, elements: int = ELEMENTS) -> torch.Tensor:
    return 0.01 * torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def array(values: torch.Tensor) -> npt.NDArray[np.float32]:
    return values.numpy()


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 0.7312, 1 / 1024])
def test_rounded_numbers_are_recognised_whatever_they_are_multiplied_by(
    dtype: torch.dtype, bits: int, factor: float
) -> None:
    assert bits == significant_bits(array(numbers().to(dtype).float() * factor))


def test_a_clip_by_value_hides_nothing() -> None:
    assert 8 == significant_bits(array(numbers().bfloat16().float().clamp(-0.0123, 0.0123)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_of_two_ranks_in_float32_has_all_bits(dtype: torch.dtype) -> None:
    assert 24 == significant_bits(array((numbers(1).to(dtype).float() + numbers(2).to(dtype).float()) / 2))


def test_few_numbers_and_multiples_of_one_number_prove_nothing() -> None:
    assert 0 == significant_bits(array(numbers(elements=1000).bfloat16().float()))
    assert 0 == significant_bits(array((numbers() * 2**11).round() / 2**24))
    assert 0 == significant_bits(np.zeros(ELEMENTS, np.float32))


def test_numbers_as_few_as_the_mantissas_of_float16_are_not_taken_for_rounded_ones() -> None:
    assert 24 == significant_bits(array(numbers(elements=1025)))
