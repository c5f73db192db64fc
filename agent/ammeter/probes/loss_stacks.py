"""Finds the line that called an operator of a loss: torch stores the stack of each node of the graph.

It does so for its anomaly detection. No check for NaN is switched on, and no number changes, but a node costs about
0.3 ms meanwhile. Stacks are therefore stored only between a forward pass and backward(), where a loss has few nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.torch_hooks import call_site, patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


class LossStacks:
    """Stores stacks from begin() to end(), unless the program has switched on torch's anomaly detection itself."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._handles: list[Any] = []
        self._passes = 0
        self._checks_nan: bool | None = None
        """torch's own setting while stacks are stored; None while they are not."""

    def begin(self, guard: Callable[..., Any], passes: int) -> None:
        """Stores the stacks of nodes that are created after the next forward passes.

        Args:
            guard: makes a callback safe.
            passes: number of forward passes. As many steps are not recorded on the fast path, which observes none.
        """
        if self._handles:
            return
        self._passes = passes
        self._session.fast_path.avoid(passes)
        stop, start = guard(lambda *_: self._stop()), guard(self._start)
        self._handles = [
            self._session.forward.subscribe(trains=stop, evaluates=stop, after=start),
            patch.backward(before=stop),
            patch.function(torch.autograd, "grad", before=stop),
        ]

    def end(self) -> None:
        self._stop()
        while self._handles:
            self._handles.pop().remove()

    def _start(self, module: torch.nn.Module, *_: Any) -> None:
        if not self._passes:
            self.end()
        elif self._checks_nan is None and module.training and not torch.is_anomaly_enabled():
            self._passes -= 1
            self._checks_nan = torch.is_anomaly_check_nan_enabled()
            torch.set_anomaly_enabled(True, False)

    def _stop(self) -> None:
        if self._checks_nan is not None:
            torch.set_anomaly_enabled(False, self._checks_nan)
            self._checks_nan = None


def line_of(node: Any) -> str:
    """Returns 'file.py:12' of the line that called a node's operator, or '' if its stack was not stored."""
    return call_site.line_of(node.metadata.get("traceback_") or ())
