"""Copies evenly spaced elements of tensors, all of small ones, for a histogram of each tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ammeter.tensors.layout import PLAIN_TYPES, in_one_piece

MAX_TENSOR_ELEMENTS = 16_384
"""Maximum number of elements of a tensor without zeros. The standard error of a share is 0.4 percentage points."""

MAX_ZEROS_SHARE = 0.5
"""From this share of zeros on, more elements are copied, and none of rows that are zero: the gradient of an embedding
has a row for each token of the batch, and a sample of all rows would have few of them."""

MAX_READ_COMPLETELY = 1.4
"""Elements per wanted element up to which all are copied."""

GOLDEN = 0.6180339887

MAX_FACTOR = 8
"""Maximum factor by which more elements are copied because of zeros."""


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Sample(NamedTuple):
    """Elements of a tensor.

    Attributes:
        values: float32.
        elements: the number of elements of which these are a sample: all, or those of rows that are not zero.
    """

    values: torch.Tensor
    elements: int


def is_copyable(tensor: torch.Tensor) -> bool:
    """Whether torch's own operators copy elements of this tensor, which may be a weight of any kind."""
    return type(tensor) in PLAIN_TYPES and tensor.dtype in DTYPES


def sampled_elements(elements: int) -> int:
    """Returns the usual number of elements that samples() copies of a tensor, approximately."""
    return min(elements, MAX_TENSOR_ELEMENTS)


def samples(tensors: Sequence[torch.Tensor], zeros: Sequence[float], turn: int) -> list[Sample]:
    """Returns a sample of each tensor.

    The tensors are real, floating-point and not empty.

    Args:
        zeros: the number of zeros in each, 0 if unknown.
        turn: with each turn, other elements of large tensors are copied.
    """
    return [_sample(tensor.detach(), count, turn) for tensor, count in zip(tensors, zeros, strict=True)]


def _sample(tensor: torch.Tensor, zeros: float, turn: int) -> Sample:
    elements = tensor.numel()
    if elements > MAX_TENSOR_ELEMENTS and MAX_ZEROS_SHARE * elements <= zeros < elements and tensor.is_cpu:
        return _of_nonzero_rows(tensor, elements - zeros, turn)
    flat = tensor.as_strided((elements,), (1,)) if in_one_piece(tensor, (tensor.dtype,)) else tensor.reshape(-1)
    places = _places(elements, MAX_TENSOR_ELEMENTS, turn, tensor.device)
    return Sample((flat if places is None else flat[places]).to(torch.float32), elements)


def _of_nonzero_rows(tensor: torch.Tensor, nonzero: float, turn: int) -> Sample:
    """Reads the whole tensor once to find its rows, which takes about as long as its statistics."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    columns = rows.shape[1]
    present = torch.linalg.vector_norm(rows, math.inf, dim=1).ne(0).nonzero().reshape(-1)
    elements = len(present) * columns
    wanted = min(MAX_FACTOR, elements / nonzero) * MAX_TENSOR_ELEMENTS
    places = _places(elements, wanted, turn, tensor.device)
    if places is None:
        places = torch.arange(elements)
    values = torch.take(rows, present[places // columns] * columns + places % columns)
    return Sample(values.to(torch.float32), elements)


def _places(elements: int, wanted: float, turn: int, device: torch.device) -> torch.Tensor | None:
    """Returns evenly spaced positions, 0.7 to 1.5 times as many as wanted; None for all.

    The distance is a whole number and the golden ratio's fraction, so that no column is omitted: multiples of it are
    spread evenly over any period.
    """
    ratio = elements / wanted
    if ratio <= MAX_READ_COMPLETELY:
        return None
    distance = math.floor(ratio) + GOLDEN
    begin = turn * GOLDEN % 1 * distance
    count = math.floor((elements - 1 - begin) / distance) + 1
    return (begin + distance * torch.arange(count, dtype=torch.float64, device=device)).long()
