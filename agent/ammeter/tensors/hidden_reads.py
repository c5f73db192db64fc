"""Reading without being seen: the program's own dispatch and function modes, such as a FLOP counter or a default
device, are about the program's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def unseen(read: Callable[[], Result], tensors: Iterable[torch.Tensor]) -> Result:
    """What read() returns; torch's operators in it pass by every mode.

    A tensor that implements its own operators, a fake one for instance, has no memory to read behind their back:
    where one of the tensors is such, nothing is passed by.
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
    """Whether there is something to read: not in a fake or meta tensor, and in a sharded one only a part of it."""
    return is_plain(tensor) and not tensor.is_meta
