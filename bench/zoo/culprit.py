"""The part of a model, and the lines of code, that the fault of a case breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, cast

import msgspec
import torch

from bench.zoo.plan import Case
from bench.zoo.trainer import REGISTRY


class Culprit(msgspec.Struct, frozen=True):
    """The broken part. names: modules or tensors. code: file, first and last line of the code that breaks them."""

    names: list[str] = []
    code: list[tuple[str, int, int]] = []


def culprit_of(case: Case, model: Any) -> Culprit:
    """The part of this model that the fault's registry names as broken."""
    expected = REGISTRY[case.what].expected
    parts = expected.names(model) if expected.names else ()
    named = [*model.named_modules(), *model.named_parameters()]
    code = [lines_of(type(part).forward) for part in parts if isinstance(part, torch.nn.Module)]
    code += [lines_of(place_of(expected.line_in))] if expected.line_in else []
    return Culprit([name for name, part_or_tensor in named if any(part_or_tensor is part for part in parts)], code)


def place_of(place: str) -> Callable[..., Any]:
    """The function at "module:Class.function" in the trainer."""
    module, _, path = place.partition(":")
    found: Any = sys.modules[module]
    for name in path.split("."):
        found = getattr(found, name)
    return cast(Callable[..., Any], found)


def lines_of(function: Callable[..., Any]) -> tuple[str, int, int]:
    """File, first and last line of a function with its nested functions."""
    code = function.__code__
    parts = [code]
    for part in parts:
        parts += [constant for constant in part.co_consts if isinstance(constant, CodeType)]
    lines = [line for part in parts for _, _, line in part.co_lines() if line]
    return Path(code.co_filename).name, min(lines), max(lines)
