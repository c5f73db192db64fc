"""Backward goes from the last tensor to the first. What is born in it reaches every tensor before, none behind."""

from __future__ import annotations

from typing import Any


def found(data: dict[str, Any]) -> dict[str, Any] | None:
    """Where a NaN was born in backward, from a `gradient.nonfinite` event; None when the gradients do not say.

    They do when nearly all tensors up to one are non-finite and all behind it are finite. With none finite it came
    from the forward pass or the loss; where single ones are not, as after a sum that went wrong, they stand for
    themselves.
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


def alone(data: dict[str, Any]) -> dict[str, Any] | None:
    """For gradients that are not finite where all that came back to the modules was: made at the last of them.

    None when all gradients are such: then they came from another rank, or are left from a step before.
    """
    if not data["finite"]:
        return None
    told = {"kind": "backward", "module": _module(data), "tensor": data["last"], "direction": "backward"}
    return told | {"confidence": "hooks"}


def _module(data: dict[str, Any]) -> str:
    name: str = data["last"]
    return name.rpartition(".")[0] or name
