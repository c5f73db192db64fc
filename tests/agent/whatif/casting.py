"""What torch makes of numbers in another format: the truth that forecasts are compared with."""

from __future__ import annotations

import torch

from ammeter.whatif.formats import Format


def cast_shares(numbers: torch.Tensor, target: Format) -> tuple[float, float, float] | None:
    """(overflow, subnormal, flushed) of the nonzero finite numbers when they are really cast; None without one.

    Depending on its version, torch casts numbers beyond e4m3fn's largest one to NaN or to that one. A float32 number
    that rounds to 448 is not larger than 464, from where on the next number of three mantissa bits would be nearer.
    """
    numbers = numbers[torch.isfinite(numbers) & (numbers != 0)].abs()
    if not numbers.numel():
        return None
    rounded = numbers.to(torch.float32).to(getattr(torch, target.name)).double()
    saturated = (rounded == target.largest) & (numbers > 464) if target.name == "float8_e4m3fn" else rounded < 0
    overflow = ~torch.isfinite(rounded) | saturated
    flushed = rounded == 0
    subnormal = ~flushed & (rounded < target.min_normal)
    return share(overflow), share(subnormal), share(flushed)


def share(where: torch.Tensor) -> float:
    return float(where.double().mean())
