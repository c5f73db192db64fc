"""Tracks gradients from torch.autograd.grad until they are assigned to parameters or backward() is called."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from ammeter.probes.call_order.marks import Mark


class ReturnedOrigin(NamedTuple):
    """The origin of gradients that torch.autograd.grad has returned.

    Attributes:
        marks: the scale() calls that they are multiplied by.
        line: line of the call if its outputs were not scaled, else ''.
        is_changed: whether the program has changed some of them in place since then, as a clip does.
    """

    marks: tuple[Mark, ...]
    line: str
    is_changed: bool = False


class ReturnedGradients:
    def __init__(self) -> None:
        self._returned: dict[int, tuple[weakref.ref[torch.Tensor], int, ReturnedOrigin]] = {}

    def add(self, results: Iterable[torch.Tensor | None], marks: tuple[Mark, ...], line: str) -> None:
        for result in results:
            if result is not None:
                self._returned[id(result)] = weakref.ref(result), result._version, ReturnedOrigin(marks, line)

    def origin_of(self, parameters: Sequence[torch.Tensor]) -> ReturnedOrigin | None:
        """The origin of these parameters' gradients, if all are results of torch.autograd.grad."""
        if not self._returned:
            return None
        origins = [self._of(parameter.grad) for parameter in parameters if parameter.grad is not None]
        known_origins = [returned for returned in origins if returned is not None]
        if not known_origins or len(known_origins) < len(origins):
            return None
        marks = tuple(mark for returned in known_origins for mark in returned.marks)
        line = next((returned.line for returned in known_origins if returned.line), "")
        return ReturnedOrigin(marks, line, any(returned.is_changed for returned in known_origins))

    def clear(self) -> None:
        if self._returned:
            self._returned.clear()

    def _of(self, gradient: torch.Tensor) -> ReturnedOrigin | None:
        ref, version, returned = self._returned.get(id(gradient), (None, -1, None))
        if returned is None or ref is None or ref() is not gradient:
            return None
        return returned if gradient._version == version else returned._replace(is_changed=True)
