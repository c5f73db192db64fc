"""Finds activations that are cast from half precision to float32 and straight back.

The values that come back are those that were cast, bit for bit, since every number in half precision has an equal one
in float32.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import msgspec
import torch

from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.call_site import Spot

HALF = (torch.float16, torch.bfloat16)

MAX_OPEN = 1024
"""Casts to float32 that are followed in one forward pass; it bounds memory."""

MAX_PLACES = 256
"""Pairs of module and line in one forward pass; it bounds memory."""


class RoundTrip(msgspec.Struct):
    """The casts of one line in one module, to float32 and back.

    Attributes:
        spot: line of the program that cast to float32.
        returned_at: line of the program in which the numbers were cast back.
        moved_bytes: bytes that both casts read and wrote.
    """

    module: str
    dtype: torch.dtype
    spot: Spot | None
    returned_at: Spot | None
    casts: int = 0
    moved_bytes: int = 0


class _Widened(NamedTuple):
    tensor: weakref.ref[Any]
    version: int
    dtype: torch.dtype
    spot: Spot | None


class RoundTrips:
    """The round trips of one forward pass. No tensor is kept alive.

    Attributes:
        places: by module and line.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[str, Spot | None], RoundTrip] = {}
        self._open: dict[int, _Widened] = {}

    def observe(self, source: torch.Tensor, output: torch.Tensor, module: str) -> None:
        """Follows a cast between two dtypes of floating-point numbers."""
        if source.is_inference():
            return  # it has no version
        if source.dtype in HALF and output.dtype is torch.float32:
            if len(self._open) < MAX_OPEN and not output.is_inference():
                widened = _Widened(weakref.ref(output), output._version, source.dtype, call_site.spot())
                self._open[id(output)] = widened
        elif source.dtype is torch.float32 and output.dtype in HALF:
            opened = self._widened(source)
            if opened is not None and opened.dtype is output.dtype:
                self._add(opened, output, module)

    def _widened(self, source: torch.Tensor) -> _Widened | None:
        """The cast that made this tensor, or the one that it is a view of, if no operator has changed it since."""
        for tensor in (source, source._base):
            known = None if tensor is None else self._open.get(id(tensor))
            if known is not None and known.tensor() is tensor and known.version == source._version:
                return known
        return None

    def _add(self, opened: _Widened, output: torch.Tensor, module: str) -> None:
        place = (module, opened.spot)
        trip = self.places.get(place)
        if trip is None:
            if len(self.places) >= MAX_PLACES:
                return
            trip = self.places[place] = RoundTrip(module, opened.dtype, opened.spot, call_site.spot())
        trip.casts += 2
        trip.moved_bytes += 2 * output.numel() * (torch.float32.itemsize + output.element_size())
