"""The histogram of exponents against numpy's own, and what the sample has to be for it to say something."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ammeter.tensors.exponents import BINS, HIGHEST, LOWEST, MAX_SAMPLED_ELEMENTS, NONFINITE, ZERO, spectrum
from tests.agent.stats_reference import FLOATS, HOSTILE, hostile, spectrum_reference


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", range(len(HOSTILE)), ids=list(HOSTILE))
def test_hostile_numbers_stand_where_numpy_puts_them(case: int, dtype: torch.dtype) -> None:
    tensor = hostile(dtype)[case]
    assert spectrum_reference([tensor]).tolist() == spectrum([tensor]).tolist()


def test_tensors_of_all_kinds_are_counted_together() -> None:
    tensors = [tensor for dtype in FLOATS for tensor in hostile(dtype)]
    assert spectrum_reference(tensors).tolist() == spectrum(tensors).tolist()


def test_each_power_of_two_has_its_bin_and_the_outermost_hold_the_rest() -> None:
    found = spectrum([torch.tensor([2.0**e for e in range(LOWEST - 3, HIGHEST + 4)])])
    assert [4, *[1] * (HIGHEST - LOWEST - 1), 4, 0, 0] == found.tolist()


def test_zeros_and_what_is_not_finite_have_bins_of_their_own() -> None:
    found = spectrum([torch.tensor([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0])])
    assert (2, 3, 1) == (found[ZERO], found[NONFINITE], found[-LOWEST])


def test_nothing_is_an_empty_histogram() -> None:
    assert [0] * BINS == spectrum([]).tolist() == spectrum([torch.empty(0, 3)]).tolist()


@pytest.mark.parametrize(
    "sizes", [(10_000_000,), (3, 5_000_000, 70_000, 1), (1000,) * 500, (MAX_SAMPLED_ELEMENTS + 1,), (2,) * 40_000]
)
def test_the_sample_is_bounded_and_large_enough(sizes: tuple[int, ...]) -> None:
    found = spectrum([torch.ones(1).expand(size) for size in sizes])
    assert MAX_SAMPLED_ELEMENTS / 4 <= found.sum() <= MAX_SAMPLED_ELEMENTS
    assert found.sum() == found[-LOWEST]


def test_a_sample_of_rows_has_elements_of_all_columns() -> None:
    """Rows of 4,096 columns: a step of 64 would fall on 64 of them only."""
    columns = 2.0 ** -(torch.arange(4096) % 32).float()
    found = spectrum([columns.expand(1024, 4096)])
    shares = found[-LOWEST - 31 : -LOWEST + 1] / found.sum()
    assert [1 / 32] * 32 == pytest.approx(shares.tolist(), rel=0.1)


def test_the_sample_says_what_all_elements_say() -> None:
    tensors = [torch.randn(1_000_000, generator=torch.Generator().manual_seed(seed)) * 10.0**-seed for seed in range(3)]
    expected = spectrum_reference(tensors) / 3e6
    found = spectrum(tensors)
    assert expected.tolist() == pytest.approx((found / found.sum()).tolist(), abs=0.01)


def test_the_same_elements_are_read_every_time() -> None:
    tensors = [torch.randn(300_000), torch.randn(100, 999).t()]
    assert spectrum(tensors).tolist() == spectrum(tensors).tolist()
