"""Events with the exponents of tensors, counted by the agent's own function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ammeter.whatif.cells import count
from ammeter.whatif.readings import EVENT
from tests.server.feeding import Stream


def say_exponents(
    stream: Stream,
    step: int,
    tensors: Mapping[str, Sequence[float]],
    scale: float = 1024.0,
    of: str = "gradient",
    elements: int = 0,
) -> None:
    """Tensors with these scaled elements.

    elements: of each tensor, of which these are a sample.
    """
    entries = []
    for name, numbers in tensors.items():
        values = np.array(numbers, np.float32)
        (counted,) = count(values, [len(values)])
        size = {"elements": elements or len(values), "absmax": float(np.abs(values).max(initial=0))}
        entries.append({"tensor": name, **size, **counted._asdict()})
    stream.say(EVENT, step, of=of, scale=scale, tensors=entries)


def spread(exponents: int, highest: int = 0) -> list[float]:
    """Numbers of as many sizes, which are equally frequent."""
    return [2.0 ** (highest - each) for each in range(exponents)]
