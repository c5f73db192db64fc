"""A question about a run, as people write it: what is cast, to which format, at which scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ammeter.whatif.formats import FORMATS, Format
from ammeter.whatif.readings import GRADIENT, KINDS

RECORDED: Literal["recorded"] = "recorded"
BEST: Literal["best"] = "best"

Scale = float | Literal["recorded", "best"]
"""A number, the scale at which each tensor was recorded, or the best power of two for each tensor."""

LARGEST_SCALE = 2.0**126
"""Scales are normal float32 numbers, and so are their reciprocals."""

MAX_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Question:
    of: str
    format: Format
    scale: Scale


def question_of(text: str) -> Question:
    """Parses [KIND:]FORMAT[@SCALE], such as float16@2^10 or weight:float8_e4m3fn@best.

    Raises:
        ValueError: it names the part that is wrong and what can stand there.
    """
    rest, _, scale = text.partition("@")
    of, _, name = rest.rpartition(":")
    return Question(kind_of(of or GRADIENT), format_of(name or "float16"), scale_of(scale or RECORDED))


def kind_of(text: str) -> str:
    """Raises ValueError unless it is one of KINDS."""
    if text not in KINDS:
        raise ValueError(f"what is cast is {_shown(text)}; use {' or '.join(KINDS)}")
    return text


def format_of(text: str) -> Format:
    """Raises ValueError if the name is not one of FORMATS."""
    if text not in FORMATS:
        raise ValueError(f"format is {_shown(text)}; use {', '.join(FORMATS)}")
    return FORMATS[text]


def scale_of(text: str) -> Scale:
    """Parses a number such as 1024 or 2^10, `recorded` or `best`. Raises ValueError for anything else."""
    if text in (RECORDED, BEST):
        return RECORDED if text == RECORDED else BEST
    base, power, exponent = text.partition("^")
    try:
        value = math.ldexp(1.0, int(exponent)) if power and base.strip() == "2" else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not 1 / LARGEST_SCALE <= value <= LARGEST_SCALE:
        raise ValueError(
            f"scale is {_shown(text)}; use a number from 2^-126 to 2^126 such as 1024 or 2^10, {RECORDED} or {BEST}"
        )
    return value


def _shown(text: str) -> str:
    return repr(text[:MAX_SHOWN_CHARS])
