"""Gradients of parameters in the form that readings need: dense, real and local."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.tensors.sharding import is_partial, shard

_USUAL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Returns gradient() of each parameter.

    Most gradients are dense, plain and without history; they need no further torch calls.
    """
    results = [parameter.grad for parameter in parameters]
    unusual = [index for index, tensor in enumerate(results) if not _is_usual(tensor)]
    if unusual:
        present = [tensor for tensor in (results[index] for index in unusual) if tensor is not None]
        converted = unseen(lambda: [gradient(parameters[index]) for index in unusual], present)
        for index, tensor in zip(unusual, converted, strict=True):
            results[index] = tensor
    return results


def _is_usual(tensor: torch.Tensor | None) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype in _USUAL_DTYPES
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_meta)
        and tensor.numel() > 0
    )


def gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """Returns the gradient of this rank as a dense real tensor, or None.

    Sparse: the coalesced values. Sharded (DTensor): the local shard, so that no collective starts; None if each rank
    has only a summand of it. Complex: viewed as pairs of reals.
    """
    tensor = parameter.grad
    if tensor is None or is_partial(tensor):
        return None
    tensor = shard(tensor)
    if not has_numbers(tensor):
        return None
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = (tensor if tensor.is_coalesced() else tensor.coalesce()).values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor if tensor.layout is torch.strided and tensor.is_floating_point() and tensor.numel() else None
