"""Takes a census of one forward call: its dispatch mode, and hooks that name the module that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch

from ammeter.probes.kernels.census import Census
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.forward_calls import hookable
from ammeter.torch_hooks.targets import plain_name


class ForwardCall:
    """A call that is being counted, until end().

    Attributes:
        module_count: modules that have hooks.
        entered: paths of the modules that have run, in the order of their first calls.
        seconds: duration of the call, set by end().
    """

    def __init__(self, census: Census, model: torch.nn.Module, prefix: str, guard: Callable[..., Any]) -> None:
        self.census = census
        self.seconds = 0.0
        self.entered: dict[str, None] = {}
        self._model = model
        self._began = perf_counter()
        self._outside: list[tuple[int, str]] = []
        self._names: dict[int, str] = {}
        self._switched()
        switched, entered, left = guard(self._switched), guard(self._entered), guard(self._left)
        context = torch.amp.autocast_mode.autocast
        self._handles: list[Any] = [
            patch.method(context, "__enter__", after=switched),
            patch.method(context, "__exit__", after=switched),
        ]
        for name, module in hookable(model):
            self._names[id(module)] = (prefix + plain_name(name)).rstrip(".")
            self._handles.append(module.register_forward_pre_hook(entered))
            self._handles.append(module.register_forward_hook(left))
        self.module_count = len(self._names)
        census.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Ends the mode and removes the hooks."""
        while self._handles:
            self._handles.pop().remove()
        self.census.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.seconds = perf_counter() - self._began

    def modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yields path and module of those that had hooks."""
        return ((self._names.get(id(module), ""), module) for _, module in hookable(self._model))

    def _entered(self, module: torch.nn.Module, *_: Any) -> None:
        self._outside.append((id(module), self.census.module))
        self.census.module = self._names.get(id(module), "")
        self.entered[self.census.module] = None

    def _left(self, module: torch.nn.Module, *_: Any) -> None:
        while self._outside:
            left, self.census.module = self._outside.pop()
            if left == id(module):
                return

    def _switched(self, *_: Any) -> None:
        self.census.switch({device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")})
