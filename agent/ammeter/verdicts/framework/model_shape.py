"""The parameters of a model: their names, shapes and dtypes, and how two models differ.

The functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ammeter.wire.frames import Schema, Tensor

OPTIMIZER_TENSOR = re.compile(r"group\d+\.\d+")
"""Names of optimizer tensors that are not model parameters. An example is float32 masters of half-precision weights."""


@dataclass(frozen=True)
class Model:
    """The parameters of a model, from the run's first columns.

    For a sharded model these are the parameters of this rank.
    """

    tensors: tuple[Tensor, ...]

    @property
    def parameters(self) -> int:
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset(tensor.dtype for tensor in self.tensors)

    @property
    def precision(self) -> str:
        """`float16` or `bfloat16` if most elements have such a dtype, else the empty string."""
        elements: Counter[str] = Counter()
        for tensor in self.tensors:
            elements[tensor.dtype] += tensor.numel
        floating = {dtype: count for dtype, count in elements.items() if dtype in ("float16", "bfloat16")}
        return max(floating, key=lambda dtype: floating[dtype]) if sum(floating.values()) * 2 > self.parameters else ""

    @property
    def text(self) -> str:
        """Returns '124,439,808 parameters in 148 tensors'."""
        return f"{self.parameters:,} parameters in {len(self.tensors):,} tensors"

    def named(self) -> list[tuple[str, tuple[int, ...]]]:
        """Returns the sorted (name, shape) pairs without a prefix that all names share.

        Wrappers of a model add such a prefix.
        """
        prefix = _common_prefix([tensor.name for tensor in self.tensors])
        return sorted((tensor.name[len(prefix) :], tuple(tensor.shape)) for tensor in self.tensors)


def model_of(schema: Schema) -> Model | None:
    """Returns the model of a schema's tensors; None if the schema has none."""
    own = tuple(tensor for tensor in schema.tensors if not OPTIMIZER_TENSOR.fullmatch(tensor.name))
    tensors = own or schema.tensors
    return Model(tensors) if tensors else None


def first_unshared(mine: Sequence[tuple[str, Any]], theirs: Sequence[tuple[str, Any]]) -> tuple[str, str]:
    """Returns the first tensor of each run that the other run lacks."""
    both = set(mine) & set(theirs)
    first = [
        next((f"{name} {shape}" for name, shape in tensors if (name, shape) not in both), "")
        for tensors in (mine, theirs)
    ]
    return first[0], first[1]


def _common_prefix(names: Sequence[str]) -> str:
    """Returns the prefix of dotted parts that all names share, such as 'model.'.

    The last part of a name never belongs to it.
    """
    if not names:
        return ""
    first, last = min(names).split("."), max(names).split(".")
    parts = []
    for mine, theirs in zip(first[:-1], last[:-1], strict=False):
        if mine != theirs:
            break
        parts.append(mine)
    return "".join(f"{part}." for part in parts)
