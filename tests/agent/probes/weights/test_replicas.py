"""The numbers that replicas have in common: bits of gradients, and a checksum of the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import ammeter
from ammeter.probes.weights.replicas import fingerprint, significant_bits
from ammeter.recording.session import watching as sessions
from tests.agent.training import stream

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


def test_numbers_at_the_limit_of_a_clip_by_value_are_not_counted() -> None:
    """The others are too few to show a rounding: sums of two bfloat16 numbers have a few more bits than each."""
    sums = (numbers(1).bfloat16().float() + numbers(2).bfloat16().float()) / 2
    assert 0 == significant_bits(array(sums.clamp(-1e-5, 1e-5)))
    few = torch.cat([sums[:500], torch.full((ELEMENTS,), 0.1), torch.full((ELEMENTS,), -0.1)])
    assert 0 == significant_bits(array(few.clamp(-0.1, 0.1)))


@pytest.mark.parametrize("distance", [1e-3, 0.02, 0.05, 0.1, 0.15, 0.3])
@pytest.mark.parametrize("factor", [1.0, 0.7312])
def test_sums_of_similar_bfloat16_numbers_are_not_rounded_to_float16(distance: float, factor: float) -> None:
    """As of ranks with similar batches: the sums have a few bits more than each, and few mantissas."""
    one = numbers(1)
    other = one * (1 + distance * torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(2)))
    assert 11 != significant_bits(array((one.bfloat16().float() + other.bfloat16().float()) / 2 * factor))


def test_numbers_with_a_bit_more_than_float16_are_not_rounded_to_it_although_they_have_few_mantissas() -> None:
    dice = np.random.default_rng(0)
    octaves = 2.0 ** dice.integers(-20, -5, ELEMENTS)

    def of_mantissas(count: int, bits: int) -> npt.NDArray[np.float32]:
        chosen = dice.permutation(2 ** (bits - 1))[:count]
        mantissas = 1 + chosen[dice.integers(0, count, ELEMENTS)] / 2 ** (bits - 1)
        return np.asarray(mantissas * octaves, np.float32)

    assert 11 == significant_bits(of_mantissas(1000, 11))
    assert 24 == significant_bits(of_mantissas(1000, 12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sum_of_two_ranks_in_float32_has_all_bits(dtype: torch.dtype) -> None:
    assert 24 == significant_bits(array((numbers(1).to(dtype).float() + numbers(2).to(dtype).float()) / 2))


def test_few_numbers_and_multiples_of_one_number_prove_nothing() -> None:
    assert 0 == significant_bits(array(numbers(elements=1000).bfloat16().float()))
    assert 0 == significant_bits(array((numbers() * 2**11).round() / 2**24))
    assert 0 == significant_bits(np.zeros(ELEMENTS, np.float32))


def test_numbers_as_few_as_the_mantissas_of_float16_are_not_taken_for_rounded_ones() -> None:
    assert 24 == significant_bits(array(numbers(elements=1025)))


def test_a_fingerprint_shows_each_single_difference() -> None:
    sums = np.random.default_rng(0).integers(0, 2**24, 3000).astype(np.float32)
    usual = fingerprint([sums[:1000], sums[1000:]])
    assert usual == fingerprint([sums.copy()])
    assert 0 <= usual < 2**24
    assert usual == np.float32(usual)
    for at in range(0, 3000, 7):
        other = sums.copy()
        other[at] = (other[at] + 1) % 2**24
        assert usual != fingerprint([other])
    assert usual != fingerprint([np.roll(sums, 1)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_fingerprint_of_weights_shows_the_last_bit_of_one_weight(dtype: torch.dtype, tmp_path: Path) -> None:
    found = [recorded(dtype, change, tmp_path / str(number)) for number, change in enumerate((0, 0, 1))]
    assert found[0] == found[1]
    assert found[0][0] == found[2][0]  # the checksum is the same
    assert found[0][1] != found[2][1]


def recorded(dtype: torch.dtype, change: int, folder: Path) -> tuple[float, float]:
    """Checksum and fingerprint of the weights before the first step, one of which is changed by some last bits."""
    torch.manual_seed(0)
    last = torch.nn.Linear(60, 3)
    model = torch.nn.Sequential(torch.nn.Linear(70, 60), last).to(dtype)
    bias = last.bias.data
    bias[1] = 1e-30
    bias.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])[1] += change
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=folder)
    for session in sessions():
        session.governor.shared_steps.begin()
    model(torch.ones(2, 70, dtype=dtype)).sum().backward()
    optimizer.step()
    run.close()
    rows, _ = stream(run.id, folder)
    return float(rows.scalar("weights_checksum")[0]), float(rows.scalar("weights_fingerprint")[0])
