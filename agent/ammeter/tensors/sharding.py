"""What of a tensor lies on this rank. Nothing here talks to the other ranks."""

from __future__ import annotations

from math import prod
from typing import Any

import torch


def shard(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor (DTensor), any other tensor as it is. No collective, no copy."""
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return found


def copies(tensor: torch.Tensor) -> int:
    """On how many ranks each element of a sharded tensor lies; 0 for a tensor that is not sharded.

    A mesh of some ranks only is taken to have its like among the others, as where FSDP goes across tensor parallelism.
    The first FSDP leaves no word about any of it with its parameters; it is taken to shard fully.
    """
    if _placements(tensor):
        mesh = tensor._spec.mesh  # type: ignore[attr-defined]
        replicas: int = prod(mesh.size(dim) for dim, place in enumerate(_placements(tensor)) if place.is_replicate())
        return replicas * max(1, int(torch.distributed.get_world_size() // mesh.size()))
    return int(getattr(tensor, "_fsdp_flattened", False))


def is_partial(tensor: torch.Tensor) -> bool:
    """Whether each rank holds only a summand of the tensor, so that nothing can be said of it before they are added."""
    return any(place.is_partial() for place in _placements(tensor))


def _placements(tensor: torch.Tensor) -> tuple[Any, ...]:
    spec = getattr(tensor, "_spec", None)
    return () if spec is None else tuple(spec.placements)
