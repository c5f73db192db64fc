"""The limits of the formats are those at which torch's casts change what becomes of a number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ammeter.whatif.formats import FORMATS, Edge, Format
from tests.agent.whatif.casting import cast_shares


def kind(magnitude: float, target: Format) -> tuple[float, float, float]:
    """What becomes of one number, as the limits say: overflow, subnormal, flushed."""

    def is_below(edge: Edge) -> bool:
        return magnitude < edge.value or (edge.is_below and magnitude == edge.value)

    flushed, finite = is_below(target.flushed), is_below(target.overflow)
    return float(not finite), float(is_below(target.normal) and not flushed), float(flushed)


def around(magnitude: float) -> list[float]:
    """A float32 number and its neighbours."""
    value = np.float32(magnitude)
    down, up = np.nextafter(value, np.float32(0)), np.nextafter(value, np.float32(math.inf))
    return [float(number) for number in (down, value, up) if 0 < number < math.inf]


@pytest.mark.parametrize("target", FORMATS.values(), ids=list(FORMATS))
def test_numbers_around_each_limit_become_what_torch_makes_of_them(target: Format) -> None:
    limits = [target.overflow.value, target.normal.value, target.flushed.value]
    limits += [target.largest, target.min_normal, target.min_subnormal]
    for magnitude in [number for limit in limits for number in around(limit)]:
        assert cast_shares(torch.tensor([magnitude], dtype=torch.float64), target) == kind(magnitude, target), magnitude


@pytest.mark.parametrize("target", FORMATS.values(), ids=list(FORMATS))
def test_numbers_of_every_size_become_what_torch_makes_of_them(target: Format) -> None:
    patterns = torch.arange(1, 0x7F80, 7, dtype=torch.int32) << 16
    for magnitude in patterns.view(torch.float32).double().tolist():
        assert cast_shares(torch.tensor([magnitude], dtype=torch.float64), target) == kind(magnitude, target), magnitude


@pytest.mark.parametrize("target", FORMATS.values(), ids=list(FORMATS))
def test_the_numbers_of_a_format_are_torchs(target: Format) -> None:
    info = torch.finfo(getattr(torch, target.name))
    assert (info.max, info.tiny) == (target.largest, target.min_normal)
    assert info.smallest_normal * info.eps == target.min_subnormal
