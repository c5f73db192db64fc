"""Finds the origin of a NaN in backward from the frontier of non-finite gradients.

Backward runs from the last parameter to the first, so a NaN that arises in it reaches all earlier parameters and no
later ones.
"""

from __future__ import annotations

from typing import Any


def find_origin(data: dict[str, Any]) -> dict[str, Any] | None:
    """Finds the origin in backward from a `gradient.nonfinite` event.

    The frontier is clear if most gradients up to one parameter are non-finite and all after it are finite.

    Returns:
        None without a clear frontier. If no gradient is finite, the NaN came from the forward pass or the loss. Single
        non-finite gradients, for example after a failed summation, do not point to an origin elsewhere.
    """
    count, after = data["count"], data["finite_after"]
    before = data["finite"] - after
    if not after or count <= before:
        return None
    last = data["tensors"][-1] if count == len(data["tensors"]) else {}
    return {
        "kind": "backward",
        "module": _module(data),
        "tensor": data["last"],
        "direction": "backward",
        "nans": last.get("nans"),
        "infs": last.get("infs"),
        "confidence": "frontier",
    }


def last_nonfinite(data: dict[str, Any]) -> dict[str, Any] | None:
    """Names the last non-finite gradient as the origin.

    It applies if the hooks found only finite gradients in the modules.

    Returns:
        None if all gradients are non-finite: they then came from another rank or an earlier step.
    """
    if not data["finite"]:
        return None
    origin = {"kind": "backward", "module": _module(data), "tensor": data["last"], "direction": "backward"}
    return origin | {"confidence": "hooks"}


def _module(data: dict[str, Any]) -> str:
    name: str = data["last"]
    return name.rpartition(".")[0] or name
