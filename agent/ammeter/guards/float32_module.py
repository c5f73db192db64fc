"""Runs one module in float32 inside a model under autocast, with two torch hooks."""

from __future__ import annotations

import threading
from typing import Any

import torch


class Wide:
    """While installed, runs the module without autocast and casts its inputs to float32."""

    def __init__(self, module: torch.nn.Module) -> None:
        opened = _Opened()
        self._handles = [
            module.register_forward_pre_hook(_Enter(opened), with_kwargs=True),
            module.register_forward_hook(_Leave(opened), always_call=True),
        ]

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


class _Opened(threading.local):
    """Contexts open in this thread. A stack, because a module may call itself."""

    def __init__(self) -> None:
        self.contexts: list[torch.autocast] = []


class _Hook:
    """A hook whose pickle or copy does nothing."""

    def __init__(self, opened: _Opened | None = None) -> None:
        self._opened = opened

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


class _Enter(_Hook):
    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._opened is not None
        given, named = _widened(args), _widened(kwargs)
        context = torch.autocast(_device_of(module, args), enabled=False)
        context.__enter__()  # type: ignore[no-untyped-call]
        self._opened.contexts.append(context)
        return given, named


class _Leave(_Hook):
    """Also called when the module raised."""

    def __call__(self, *_: Any) -> None:
        assert self._opened is not None
        if self._opened.contexts:
            self._opened.contexts.pop().__exit__(None, None, None)


def _nothing() -> Any:
    return _nothing_to_do


def _nothing_to_do(*_: Any) -> None:
    """Replaces a hook in a copy."""


def _widened(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
    if type(given) in (list, tuple):
        return type(given)(_widened(value) for value in given)
    if type(given) is dict:
        return {name: _widened(value) for name, value in given.items()}
    return given


def _device_of(module: torch.nn.Module, args: tuple[Any, ...]) -> str:
    tensors = [*(arg for arg in args if isinstance(arg, torch.Tensor)), *module.parameters()]
    return tensors[0].device.type if tensors else "cpu"
