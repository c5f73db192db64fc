"""The part of a tensor that is on this rank. Starts no communication."""

from __future__ import annotations

from math import prod
from typing import Any

import torch


def shard(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor, any other tensor as it is.

    No collective, no copy.
    """
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def copies(tensor: torch.Tensor) -> int:
    """Returns on how many ranks each element of a tensor is; 0 if not sharded.

    A mesh of only some of the ranks is assumed to have equal counterparts among the others, as with FSDP across tensor
    parallelism. FSDP version 1 stores nothing of this on its parameters; it is assumed to shard fully.
    """
    if _placements(tensor):
        mesh = tensor._spec.mesh  # type: ignore[attr-defined]
        replicas: int = prod(mesh.size(dim) for dim, place in enumerate(_placements(tensor)) if place.is_replicate())
        return replicas * max(1, int(torch.distributed.get_world_size() // mesh.size()))
    return int(getattr(tensor, "_fsdp_flattened", False))


def is_partial(tensor: torch.Tensor) -> bool:
    """Whether each rank has only a summand, so that no statistic is valid before reduction."""
    return any(place.is_partial() for place in _placements(tensor))


def _placements(tensor: torch.Tensor) -> tuple[Any, ...]:
    spec = getattr(tensor, "_spec", None)
    return () if spec is None else tuple(spec.placements)
