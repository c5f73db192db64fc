"""What went into the model in this step: remembered weakly, looked at only when the step turned out bad."""

from __future__ import annotations

import inspect
import weakref
from typing import Any, NamedTuple

import torch

from ammeter.probes.origin.floats import Readings, inside, version

MOST = 128
"""Tensors remembered in one step, all micro-batches together."""


class _Given(NamedTuple):
    micro_batch: int
    argument: int | str
    path: str
    dtype: str
    tensor: weakref.ref[torch.Tensor]
    version: int


class Inputs:
    """Of one step. remember() at each forward call, look() once, found() when the numbers have arrived."""

    def __init__(self) -> None:
        self._given: list[_Given] = []
        self._micro_batches = 0
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._looked: list[tuple[_Given, int]] = []
        self.readings: Readings | None = None

    def remember(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._model = weakref.ref(model)
        given: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for argument, value in given:
            for path, tensor in inside(value):
                if len(self._given) < MOST:
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    ref = weakref.ref(tensor)
                    self._given.append(_Given(self._micro_batches, argument, path, dtype, ref, version(tensor)))
        self._micro_batches += 1

    def look(self) -> None:
        """Reads what is still there and unchanged."""
        self.readings = Readings()
        for given in self._given:
            tensor = given.tensor()
            if tensor is not None and version(tensor) == given.version:
                self._looked.append((given, self.readings.take(tensor)))
        self._given = []

    def found(self) -> dict[str, Any] | None:
        """The first input that is not finite. A mask's -Inf alone is none."""
        numbers = self.readings.all() if self.readings else []
        for given, place in self._looked:
            read = numbers[place]
            if read is not None and read.bad and not read.masked:
                return {
                    "kind": "input",
                    "module": "",
                    "input": self._name(given.argument) + given.path,
                    "dtype": given.dtype,
                    "absmax": read.absmax,
                    "nans": int(read.nans),
                    "infs": int(read.positive + read.negative),
                    "sample": int(read.sample),
                    "micro_batch": given.micro_batch,
                    "confidence": "inputs",
                }
        return None

    def _name(self, argument: int | str) -> str:
        """The name that the model's forward gives to an argument."""
        model = self._model() if self._model else None
        if isinstance(argument, str) or model is None:
            return str(argument)
        try:
            names = list(inspect.signature(model.forward).parameters.values())
        except (TypeError, ValueError):
            names = []
        named = [each.name for each in names if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        return named[argument] if argument < len(named) else f"args[{argument}]"
