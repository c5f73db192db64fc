"""Formats numbers in causes and fixes, in the same way for every verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def scale(value: float) -> str:
    """Returns '65536 (2^16)'; the exponent only if the scale is a power of two."""
    if value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5:
        exponent = math.frexp(value)[1] - 1
        return f"{value:.0f} (2^{exponent})" if 0 <= exponent < 40 else f"{value:.3g} (2^{exponent})"
    return f"{value:g}"


def figure(value: float) -> str:
    """Returns three significant digits, such as '0.0123' and '1060': an exponent only from a million on."""
    return f"{float(f'{value:.3g}'):.0f}" if 1000 <= abs(value) < 999_500 else f"{value:.3g}"


def sentence(text: str) -> str:
    """Capitalizes the first letter."""
    return text[:1].upper() + text[1:]


def count(number: int, noun: str) -> str:
    """Returns '1 step', '5 steps'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str]) -> str:
    """Returns 'speed', 'speed and memory', 'speed, memory and cost'."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def earlier(step: int) -> str:
    """Returns the state to return to, such as 'a checkpoint from before step 21'.

    At step 0 it is the state that the run began from, because no checkpoint of its own exists.
    """
    return f"a checkpoint from before step {step}" if step > 0 else "the state that this run started from"


def baseline(name: str) -> str:
    """Returns 'the baseline' with its name; a run named baseline must not read as a repeated word."""
    return f'the baseline (run "{name}")' if name else "the baseline"


def of_loss(column: str) -> str:
    """Returns ' of gan.py:41' for one of several losses, '' for a run's only loss."""
    place = column.partition("@")[2][:200]
    return f" of {place}" if place else ""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def span_text(numbers: dict[str, Any], last_step: int | None, steps: int, *, sampled: bool) -> str:
    """Describes a column by its first, last, lowest and highest reading.

    Args:
        numbers: A span in JSON.
        last_step: The last step of the run.
        steps: Number of steps.
        sampled: Whether the column is not read at every step.
    """
    last, at = numbers["last"], numbers["last_step"]
    newest = last if isinstance(last, str) else f"{last:.4g}"
    if last_step is None or at is None or at >= last_step:
        ended = f"{newest} at last" + (f" (step {at})" if isinstance(last, str) else "")
    else:
        ended = f"{newest} when it was read last (step {at}; the last step is {last_step})"
    parts = [ended]
    if numbers["first"] is not None:
        bounds = f"lowest {numbers['lowest']:.4g}, highest {numbers['highest']:.4g}"
        parts = [f"{numbers['first']:.4g} at first", ended, bounds]
    if sampled and numbers["read"] < steps:
        parts.append(f"read in {numbers['read']} of {count(steps, 'step')}")
    return ", ".join(parts)


def number(value: float) -> float | str:
    """Converts a number for JSON; non-finite numbers become text."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def finite(value: Any) -> Any:
    """Converts all numbers of nested plain data for JSON."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    return [finite(member) for member in value] if isinstance(value, list | tuple) else value
