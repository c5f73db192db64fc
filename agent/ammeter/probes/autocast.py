"""Reports autocast contexts, once per combination of device, dtype and gradient mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


class Autocast:
    name = "autocast"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._seen: set[tuple[str, str, bool]] = set()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        context = torch.amp.autocast_mode.autocast
        return self._session.fast_path.pauses([patch.method(context, "__enter__", after=guard(self._after_enter))])

    def _after_enter(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        context = args[0]
        if not context._enabled:
            return
        dtype = str(context.fast_dtype).removeprefix("torch.")
        combination = (str(context.device), dtype, torch.is_grad_enabled())
        if combination not in self._seen:
            self._seen.add(combination)
            self._session.emit("autocast.entered", {"device": combination[0], "dtype": dtype, "grad": combination[2]})
