"""Whether tensors may be read by address: where their elements lie, and that they still look as they did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)


class Gone(ValueError):
    """A tensor to be read has no memory."""

    def __init__(self) -> None:
        super().__init__(
            "a tensor to be read has no memory: its storage was resized; keep gradients until the optimizer has stepped"
        )


def in_one_piece(tensor: torch.Tensor, dtypes: Collection[torch.dtype]) -> bool:
    """Whether its elements, of one of these dtypes, are one piece of memory without gaps, in any order.

    Raises Gone where that memory was given back.
    """
    if type(tensor) not in PLAIN or tensor.dtype not in dtypes or tensor.device.type not in ("cpu", "cuda"):
        return False
    if tensor.is_nested or tensor.layout is not torch.strided or tensor._is_zerotensor():
        return False
    if not (tensor.is_contiguous() or _has_no_gaps(tensor)):
        return False
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if tensor.numel() and tensor.untyped_storage().nbytes() < end:
        raise Gone
    return True


def looks(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether as many others have the types, dtypes, devices, shapes and strides of these, in 50 ns for each.

    torch's own test for a compiled graph. A torch without it has every step's tensors looked at one by one. Only for
    tensors in one piece: torch ends the process for some others.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (ImportError, TypeError, AttributeError):
        return lambda *_: False


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether it is a permutation of a contiguous tensor, as a transposed or a channels-last one is."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
