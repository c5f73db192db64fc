"""Runs one module in float32 inside a model under autocast, with two torch hooks."""

from __future__ import annotations

import threading
from typing import Any

import torch


class Float32Module:
    """While installed, runs the module without autocast and casts its inputs to float32."""

    def __init__(self, module: torch.nn.Module) -> None:
        open_contexts = _OpenContexts()
        self._handles = [
            module.register_forward_pre_hook(_Enter(open_contexts), with_kwargs=True),
            module.register_forward_hook(_Leave(open_contexts), always_call=True),
        ]

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


class _OpenContexts(threading.local):
    """Contexts open in this thread. A stack, because a module may call itself."""

    def __init__(self) -> None:
        self.contexts: list[torch.autocast] = []


class _Hook:
    """A hook whose pickle or copy does nothing."""

    def __init__(self, open_contexts: _OpenContexts | None = None) -> None:
        self._open_contexts = open_contexts

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_hook, ()


class _Enter(_Hook):
    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._open_contexts is not None
        value, keyword_args = _as_float32(args), _as_float32(kwargs)
        context = torch.autocast(_device_of(module, args), enabled=False)
        context.__enter__()  # type: ignore[no-untyped-call]
        self._open_contexts.contexts.append(context)
        return value, keyword_args


class _Leave(_Hook):
    """Also called when the module raised."""

    def __call__(self, *_: Any) -> None:
        assert self._open_contexts is not None
        if self._open_contexts.contexts:
            self._open_contexts.contexts.pop().__exit__(None, None, None)


def _restored_hook() -> Any:
    return _no_op


def _no_op(*_: Any) -> None:
    """Replaces a hook in a copy."""


def _as_float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if type(value) in (list, tuple):
        return type(value)(map(_as_float32, value))
    if type(value) is dict:
        return {name: _as_float32(element) for name, element in value.items()}
    return value


def _device_of(module: torch.nn.Module, args: tuple[Any, ...]) -> str:
    tensors = [*(arg for arg in args if isinstance(arg, torch.Tensor)), *module.parameters()]
    return tensors[0].device.type if tensors else "cpu"
