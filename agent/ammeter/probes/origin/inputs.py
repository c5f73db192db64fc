"""Keeps weak references to the model's inputs and reads them only in bad steps."""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from typing import Any

import torch

from ammeter.probes.origin.floats import Numbers, Readings, inside, is_readable, version
from ammeter.torch_hooks.forward_calls import innermost, is_compiled

FLOAT16_MAX = 65504.0

MAX_INPUTS = 128
"""Tensors referenced in one step over all micro-batches, checked at each forward call; it bounds the work per step."""

Argument = tuple[int | str, str]
"""Position or name of an argument of forward(), and the path inside of it."""


class Inputs:
    """The inputs of one step.

    Order of calls: remember() at each forward call, read() once, first_nonfinite() after the transfers.
    """

    __slots__ = ("_last", "_model", "_readings_of", "_references", "readings")

    def __init__(self) -> None:
        self._references: list[tuple[int, int | str, str, weakref.ref[torch.Tensor], int]] = []
        self._last = -1
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._readings_of: list[tuple[int, int | str, str, str, int]] = []
        self.readings: Readings | None = None

    def remember(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], backwards: int) -> None:
        """Stores weak references to the inputs. It runs in every step, so it reads no element of a tensor.

        Args:
            backwards: backward passes of the step before this forward pass.
        """
        self._model = weakref.ref(model)
        self._last = backwards
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

    def read(self) -> Readings:
        """Reads the inputs that still exist unchanged, once."""
        self.readings = self.readings or Readings()
        for number, argument, path, ref, known_version in self._references:
            tensor = ref()
            if tensor is not None and is_readable(tensor) and version(tensor) == known_version:
                dtype = str(tensor.dtype).removeprefix("torch.")
                self._readings_of.append((number, argument, path, dtype, self.readings.add(tensor)))
        self._references = []
        return self.readings

    def _remember(self, argument: int | str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if is_data(value):
                self._references.append((self._last, argument, "", weakref.ref(value), version(value)))
        elif isinstance(value, dict | list | tuple) or dataclasses.is_dataclass(value):
            for path, tensor in inside(value):
                if is_data(tensor):
                    self._references.append((self._last, argument, path, weakref.ref(tensor), version(tensor)))

    def nonfinite(self) -> frozenset[Argument]:
        """The arguments that are not finite, other than masks."""
        numbers = self.readings.all() if self.readings else []
        return frozenset(
            (argument, path) for _, argument, path, _, place in self._readings_of if _is_faulty(numbers[place])
        )

    def first_nonfinite(self, backwards: int = 1, usual: frozenset[Argument] = frozenset()) -> dict[str, Any] | None:
        """The first non-finite input, as event data.

        An input with -Inf only is a mask and does not count.

        Args:
            backwards: backward passes of the step.
            usual: arguments that do not count, because they were not finite in a good step either.
        """
        numbers = self.readings.all() if self.readings else []
        for number, argument, path, dtype, place in self._readings_of:
            read = numbers[place]
            if read is not None and _is_faulty(read) and (argument, path) not in usual:
                return {
                    "kind": "input",
                    "module": "",
                    "input": self._name(argument) + path,
                    "dtype": dtype,
                    "absmax": read.absmax,
                    "nans": int(read.nans),
                    "infs": int(read.positive + read.negative),
                    "sample": int(read.sample),
                    "micro_batch": number if self._last == max(0, backwards - 1) else None,
                    "confidence": "inputs",
                }
        return None

    def beyond_float16(self) -> dict[str, Any]:
        """The first finite input with numbers that float16 does not have, as event data; {} if there is none."""
        numbers = self.readings.all() if self.readings else []
        for _, argument, path, dtype, place in self._readings_of:
            read = numbers[place]
            if read is not None and not read.bad and dtype != "float16" and read.absmax > FLOAT16_MAX:
                return {"input": self._name(argument) + path, "beyond_float16": read.absmax}
        return {}

    def _name(self, argument: int | str) -> str:
        model = self._model() if self._model else None
        return str(argument) if isinstance(argument, str) or model is None else name_of(model, argument)


def is_data(tensor: torch.Tensor) -> bool:
    """Whether no operator of a graph made a tensor, such as those of another model, and it is no weight."""
    return tensor.is_leaf and not isinstance(tensor, torch.nn.Parameter)


def name_of(model: torch.nn.Module, position: int) -> str:
    """The name of a positional argument in the signature of the model's forward()."""
    try:
        parameters = list(inspect.signature(innermost(model).forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return positional[position] if position < len(positional) else f"args[{position}]"


def _is_faulty(numbers: Numbers | None) -> bool:
    return numbers is not None and numbers.bad and not numbers.masked
