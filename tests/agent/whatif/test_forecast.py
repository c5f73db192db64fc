"""Shares in another format at another scale, the best scale, and what is recommended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ammeter.whatif.cells import count
from ammeter.whatif.forecast import Shares, best_scale, forecasts, recommended, shares
from ammeter.whatif.formats import FORMATS
from ammeter.whatif.histogram import Histogram, histogram_of
from ammeter.whatif.readings import Readings, readings_of
from tests.agent.whatif.casting import cast_shares


def histogram(numbers: Sequence[float] | torch.Tensor, scale: float = 1.0, elements: int = 0) -> Histogram:
    """The histogram of these numbers, which are already multiplied by the scale."""
    values = torch.as_tensor(numbers, dtype=torch.float64).to(torch.float32).numpy()
    (counted,) = count(values, [len(values)])
    finite = np.abs(values[np.isfinite(values)])
    data = {"tensor": "w", "elements": elements or len(values), "absmax": float(finite.max(initial=0))}
    entry = histogram_of(0, scale, data | counted._asdict())
    assert entry is not None
    return entry[1]


def as_tuple(result: Shares | None) -> tuple[float, float, float]:
    assert result is not None
    return result.overflow, result.subnormal, result.flushed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float16"])
def test_every_power_of_two_gives_exactly_the_shares_of_a_cast(name: str, dtype: torch.dtype) -> None:
    """Also of numbers that were rounded before, many of which are exactly on a limit."""
    generator = torch.Generator().manual_seed(1)
    numbers = (torch.randn(500, generator=generator) * torch.logspace(-6, 1, 500)).to(dtype).double()
    recorded = histogram((numbers * 2.0**4).float(), 2.0**4)
    for exponent in range(-30, 40):
        scale = 2.0**exponent
        expected = cast_shares(numbers * scale, FORMATS[name])
        assert expected == pytest.approx(as_tuple(shares([recorded], FORMATS[name], scale)), abs=1e-12)


def test_multiples_of_the_smallest_float16_round_to_even() -> None:
    """At half the scale, 1 * 2^-24 becomes zero, and 3 * 2^-24 becomes 2^-23."""
    grid = histogram([number * 2.0**-24 for number in (1, 1, 2, 3)], 1024.0)
    assert (0, 1, 0) == as_tuple(shares([grid], FORMATS["float16"], 1024.0))
    assert (0, 0.5, 0.5) == as_tuple(shares([grid], FORMATS["float16"], 512.0))


@pytest.mark.parametrize("scale", [1000.0, 3.0, 0.7])
def test_other_ratios_divide_a_cell_by_the_density_of_its_elements(scale: float) -> None:
    numbers = torch.randn(200_000, generator=torch.Generator().manual_seed(2)).double() * 1e-3
    for target in FORMATS.values():
        for exponent in range(-12, 26, 3):
            expected = cast_shares(numbers * scale * 2.0**exponent, target)
            found = as_tuple(shares([histogram(numbers)], target, scale * 2.0**exponent))
            assert expected == pytest.approx(found, abs=0.01)


def test_zeros_and_what_is_not_finite_are_no_part_of_a_share() -> None:
    recorded = histogram([0.0, 0.0, math.nan, math.inf, 1.0, 2.0**-30])
    assert (0, 0, 0.5) == as_tuple(shares([recorded], FORMATS["float16"], 1.0))
    assert shares([histogram([0.0, math.nan])], FORMATS["float16"], 1.0) is None
    assert shares([], FORMATS["float16"], 1.0) is None


def test_several_readings_count_by_their_elements_and_their_own_scales() -> None:
    readings = [histogram([2.0**-20] * 3, 2.0**10), histogram([2.0**-20], 1.0)]
    assert (0, 0.25, 0.75) == as_tuple(shares(readings, FORMATS["float16"], 1.0))
    assert 2.0**34 == best_scale(readings, FORMATS["float16"])


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("largest", [1e-12, 0.99, 1.0, 1.01, 3e4])
def test_the_best_scale_is_the_largest_at_which_the_largest_element_can_double(name: str, largest: float) -> None:
    target = FORMATS[name]
    scale = best_scale([histogram([largest, min(largest, target.min_normal) / 4])], target)
    assert scale is not None
    assert math.frexp(scale)[0] == 0.5
    assert 2 * largest * scale <= target.overflow.value
    assert 4 * largest * scale > target.overflow.value or scale == 2.0**126


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_format_that_loses_nothing_needs_no_scale(name: str) -> None:
    target = FORMATS[name]
    assert 1.0 == best_scale([histogram([1.0, target.min_normal])], target)
    assert 1.0 != best_scale([histogram([1.0, target.min_normal / 2])], target)


def test_a_tensor_without_a_nonzero_element_has_no_forecast() -> None:
    assert [] == forecasts([histogram([0.0, 0.0])])
    assert recommended([]) is None


def test_the_narrowest_format_with_enough_range_is_recommended() -> None:
    names = {
        spread: [found.format for found in [recommended(forecasts([histogram(spreading(spread))]))] if found]
        for spread in (6, 16, 28, 38, 240)
    }
    assert {
        6: ["float8_e4m3fn"],
        16: ["float8_e4m3fn"],
        28: ["float8_e5m2"],
        38: ["float16"],
        240: ["bfloat16"],
    } == names


def spreading(exponents: int) -> list[float]:
    """Numbers with as many sizes, which are equally frequent."""
    return [2.0 ** (exponents / 2 - exponent) for exponent in range(exponents)]


def test_a_small_sample_decides_only_what_is_clear() -> None:
    few = histogram([1.0] * 30 + [2.0**-40], elements=10**6)
    assert {None} == {forecast.fits for forecast in forecasts([few]) if forecast.format.startswith("float8")}
    assert recommended(forecasts([few])) is None
    assert forecasts([histogram([1.0] * 30 + [2.0**-40])])[0].fits is False
    clear = histogram([1.0] * 20 + [2.0**-40] * 20, elements=10**6)
    assert forecasts([clear])[0].fits is False


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "tensor": "w", "elements": 4, "lowest": 0, "counts": [4, 0, 0, 0, 0, 0, 0], "zeros": 0, "nonfinite": 0,
        "absmax": 1.0, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor": None}, {"lowest": 200}, {"lowest": "0"}, {"counts": [1]}, {"counts": "many"}, {"counts": [-1] * 7},
        {"counts": [1.5] * 7}, {"counts": [0] * 7 * 278}, {"zeros": None}, {"nonfinite": 2**60}, {"absmax": math.inf},
        {"absmax": -1.0}, {"absmax": "1"}, {"elements": None},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_entries_are_ignored(changes: dict[str, Any]) -> None:
    data = {"of": "gradient", "scale": 1.0, "tensors": [entry(**changes), entry(tensor="good"), "text"]}
    assert ["good"] == list(readings_of([(0, data)], "gradient"))


@pytest.mark.parametrize("data", [{}, {"of": "gradient", "scale": 0.0, "tensors": [entry()]}, {"tensors": {}}], ids=str)
def test_malformed_events_are_ignored(data: dict[str, Any]) -> None:
    assert {} == readings_of([(0, data)], "gradient")


def test_a_tensor_with_what_is_not_finite_does_not_count() -> None:
    collected = Readings("gradient")
    for step, nonfinite in ((4, 0), (5, 3)):
        collected.add(step, {"of": "gradient", "scale": 1.0, "tensors": [entry(nonfinite=nonfinite)]})
    assert {"w": [4]} == {name: [reading.step for reading in found] for name, found in collected.later_half().items()}


def test_readings_of_the_later_half_of_the_steps_count() -> None:
    collected = Readings("gradient")
    for step in (2, 10, 21, 40):
        collected.add(step, {"of": "gradient", "scale": 1.0, "tensors": [entry()]})
        collected.add(step, {"of": "weight", "scale": 1.0, "tensors": [entry(tensor="v")]})
    later = collected.later_half()
    assert {"w": [21, 40]} == {name: [reading.step for reading in found] for name, found in later.items()}
