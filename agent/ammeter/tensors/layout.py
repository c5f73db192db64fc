"""Checks whether tensors may be read by address and have kept their layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


class FreedMemory(ValueError):
    """A tensor to be read has no memory."""

    def __init__(self) -> None:
        super().__init__(
            "a tensor to be read has no memory: its storage was resized; keep gradients until the optimizer has stepped"
        )


def in_one_piece(tensor: torch.Tensor, dtypes: Collection[torch.dtype]) -> bool:
    """Whether the elements fill one piece of memory without gaps, in any order.

    False also for a dtype that is not among these.

    Raises:
        Gone: the memory was freed.
    """
    if type(tensor) not in PLAIN_TYPES or tensor.dtype not in dtypes or tensor.device.type not in ("cpu", "cuda"):
        return False
    if tensor.is_nested or tensor.layout is not torch.strided or tensor._is_zerotensor():
        return False
    if not (tensor.is_contiguous() or _has_no_gaps(tensor)):
        return False
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if tensor.numel() and tensor.untyped_storage().nbytes() < end:
        raise FreedMemory
    return True


def layout_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Returns a check that tensors match these in type, dtype, device, shape and stride.

    It is torch's guard for compiled graphs and takes 50 ns per tensor. Without it in torch the check is always False,
    so that every step's tensors are inspected one by one. Only for tensors in one piece: torch aborts the process for
    some others.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    except (ImportError, TypeError, AttributeError):
        return lambda *_: False


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a permutation of a contiguous one, such as transposed or channels-last."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
