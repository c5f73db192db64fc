"""Calls back as around calls that no patch has observed."""

from __future__ import annotations

from typing import Any

from torch import autograd

from ammeter.torch_hooks import patch


def backward(outputs: Any, *, is_over: bool) -> None:
    """Calls back as before or after backward() on these tensors, from a hook inside that backward pass."""
    calls = patch.hook_point(autograd, "backward").calls
    own_pass = {patch.graph_task()} - patch.replayed_passes
    patch.replayed_passes.update(own_pass)
    try:
        for call in calls[is_over]:
            call(*((outputs,), {}, None)[: 2 + is_over])
    finally:
        patch.replayed_passes.difference_update(own_pass)


def method(kind: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Calls back as around a call of this method."""
    for before in patch.hook_point(kind, name).calls[0]:
        before(args, kwargs)
    end_of_method(kind, name, args, kwargs, result)


def end_of_method(kind: type, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Calls back as at the end of a call of this method."""
    for after in patch.hook_point(kind, name).calls[1]:
        after(args, kwargs, result)
