"""Reads tensors without triggering the program's dispatch and function modes.

Such modes, for example a FLOP counter or a default device, are meant for the program's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def unseen(read: Callable[[], Result], tensors: Iterable[torch.Tensor]) -> Result:
    """Returns read(), in which torch's operators bypass every mode.

    A tensor that implements its own operators, such as a fake tensor, has no memory that can be read directly. If one
    of the tensors is of this kind, no mode is bypassed.
    """
    if not (torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()):
        return read()
    if not all(map(is_plain, tensors)):
        return read()
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return read()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether torch's own kernels run on this tensor."""
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def has_numbers(tensor: torch.Tensor) -> bool:
    """Whether the tensor has values to read.

    False for fake and meta tensors, and for a sharded tensor, of which only the local shard has values.
    """
    return is_plain(tensor) and not tensor.is_meta


ORDINARY = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors whose attributes run no code of the program."""


def is_ordinary(value: object) -> bool:
    """Whether this is a tensor of one of these classes.

    `isinstance` would read `__class__`, which a proxy computes.
    """
    return type(value) in ORDINARY
