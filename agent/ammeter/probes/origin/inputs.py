"""Keeps weak references to the model's inputs and reads them only in bad steps."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from typing import Any

import torch

from ammeter.probes.origin.floats import Readings, inside, is_readable, version
from ammeter.torch_hooks.forward_calls import innermost, is_compiled

MAX_INPUTS = 128
"""Tensors referenced in one step over all micro-batches, checked at each forward call; it bounds the work per step."""


class Inputs:
    """The inputs of one step.

    Order of calls: remember() at each forward call, read() once, first_nonfinite() after the transfers.
    """

    __slots__ = ("_model", "_passes", "_readings_of", "_references", "readings")

    def __init__(self) -> None:
        self._references: list[tuple[int, int | str, str, weakref.ref[torch.Tensor], int]] = []
        self._passes = 0
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._readings_of: list[tuple[int, int | str, str, str, int]] = []
        self.readings: Readings | None = None

    def remember(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], passes: int = 1) -> None:
        """Stores weak references to the inputs. It runs in every step, so it reads no element of a tensor.

        Args:
            passes: forward passes of the model since the last call, including this one.
        """
        self._model = weakref.ref(model)
        self._passes += passes
        if len(self._references) >= MAX_INPUTS:
            return
        for position, value in enumerate(args):
            self._remember(position, value)
        if kwargs:
            for name, value in kwargs.items():
                self._remember(name, value)

    def of_compiled(self) -> bool:
        """Whether the model that received the inputs is compiled."""
        model = self._model() if self._model else None
        return model is not None and is_compiled(model)

    def read(self) -> None:
        """Reads the inputs that still exist unchanged."""
        self.readings = Readings()
        for number, argument, path, ref, known_version in self._references:
            tensor = ref()
            if tensor is not None and is_readable(tensor) and version(tensor) == known_version:
                dtype = str(tensor.dtype).removeprefix("torch.")
                self._readings_of.append((number, argument, path, dtype, self.readings.add(tensor)))
        self._references = []

    def _remember(self, argument: int | str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._references.append((self._passes, argument, "", weakref.ref(value), version(value)))
        elif isinstance(value, dict | list | tuple) or dataclasses.is_dataclass(value):
            for path, tensor in inside(value):
                self._references.append((self._passes, argument, path, weakref.ref(tensor), version(tensor)))

    def first_nonfinite(self) -> dict[str, Any] | None:
        """The first non-finite input, as event data.

        An input with -Inf only is a mask and does not count.
        """
        numbers = self.readings.all() if self.readings else []
        for number, argument, path, dtype, place in self._readings_of:
            read = numbers[place]
            if read is not None and read.bad and not read.masked:
                return {
                    "kind": "input",
                    "module": "",
                    "input": self._name(argument) + path,
                    "dtype": dtype,
                    "absmax": read.absmax,
                    "nans": int(read.nans),
                    "infs": int(read.positive + read.negative),
                    "sample": int(read.sample),
                    "micro_batch": number - 1,
                    "confidence": "inputs",
                }
        return None

    def _name(self, argument: int | str) -> str:
        """The name of an argument in the signature of the model's forward()."""
        model = self._model() if self._model else None
        if isinstance(argument, str) or model is None:
            return str(argument)
        try:
            parameters = list(inspect.signature(innermost(model).forward).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        return positional[argument] if argument < len(positional) else f"args[{argument}]"
