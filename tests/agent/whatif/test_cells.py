"""Elements are counted in the cell where their size is, whatever they look like."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from ammeter.whatif.cells import CELLS, HIGHEST, LOWEST, PER_EXPONENT, Counted, count
from ammeter.whatif.formats import FORMATS, Edge


def counted(*numbers: float) -> Counted:
    (result,) = count(np.array(numbers, np.float32), [len(numbers)])
    return result


def cell_of(number: float) -> tuple[int, int]:
    """(exponent, cell) by comparison with the lower ends."""
    mantissa, exponent = math.frexp(abs(number))
    inside = [edge for edge in CELLS if edge.value < 2 * mantissa or (edge.value == 2 * mantissa and not edge.is_below)]
    return exponent - 1, len(inside) - 1


def naive(numbers: npt.NDArray[np.float32]) -> dict[tuple[int, int], int]:
    counts: dict[tuple[int, int], int] = {}
    for number in numbers[np.isfinite(numbers) & (numbers != 0)].tolist():
        counts[cell_of(number)] = counts.get(cell_of(number), 0) + 1
    return counts


def as_dict(result: Counted) -> dict[tuple[int, int], int]:
    return {
        (result.lowest + place // PER_EXPONENT, place % PER_EXPONENT): number
        for place, number in enumerate(result.counts)
        if number
    }


@pytest.mark.parametrize("exponent", [LOWEST, -140, -127, -126, -24, 0, 15, HIGHEST])
def test_each_cell_begins_where_it_says(exponent: int) -> None:
    for edge in CELLS:
        number = np.float32(math.ldexp(edge.value, exponent))
        neighbours = [np.nextafter(number, np.float32(0)), number, np.nextafter(number, np.float32(math.inf))]
        chosen = np.array([value for value in neighbours if 0 < value < math.inf], np.float32)
        assert naive(chosen) == as_dict(counted(*chosen.tolist()))


def test_numbers_of_all_sizes_are_counted_as_by_comparison() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    numbers = bits.view(np.float32)
    (result,) = count(numbers, [len(numbers)])
    assert naive(numbers) == as_dict(result)
    assert int((~np.isfinite(numbers)).sum()) == result.nonfinite


def test_zeros_and_what_is_not_finite_have_no_exponent() -> None:
    assert Counted(0, [0, 0, 0, 0, 0], 0, 0)._replace(counts=[], zeros=2, nonfinite=3) == counted(
        0.0, -0.0, math.nan, math.inf, -math.inf
    )
    assert counted() == Counted(0, [], 0, 0)


def test_each_tensor_has_its_own_counts() -> None:
    results = list(count(np.array([1.0, 1.5, -4.0, 0.0], np.float32), [2, 0, 2]))
    assert [{(0, 0): 1, (0, 1): 1}, {}, {(2, 0): 1}] == [as_dict(result) for result in results]
    assert [0, 0, 1] == [result.zeros for result in results]


def test_only_limits_of_bfloat16_are_inside_a_cell() -> None:
    def is_end(edge: Edge) -> bool:
        return edge._replace(value=2 * math.frexp(edge.value)[0]) in CELLS

    inside = {
        target.name for target in FORMATS.values() for edge in (target.overflow, target.normal, target.flushed)
        if not is_end(edge)
    }  # fmt: skip
    assert inside == {"bfloat16"}
