"""Escapes report values for Markdown, because names and data of a run may contain anything."""

from __future__ import annotations

import math
from typing import Any

from ammeter.report.run_summary import instant
from ammeter.verdicts.framework import wording
from ammeter.wire import printable

MAX_EVIDENCE_CHARS = 200


class Markdown(str):
    """Text that is valid Markdown already and is not escaped again."""

    __slots__ = ()


def text(value: Any) -> Markdown:
    """Escapes markup and table separators, and removes control characters."""
    if isinstance(value, Markdown):
        return value
    plain = printable.sentence(str(value)).replace("&", "&amp;").replace("<", "&lt;")
    for mark in ("\\", "|", "*", "_", "[", "]", "`", "~", "#", "$"):
        plain = plain.replace(mark, f"\\{mark}")
    return Markdown(plain)


def code(value: Any) -> Markdown:
    """Formats a name as inline code."""
    plain = printable.line(" ".join(str(value).split()))
    return Markdown("`" + plain.replace("`", "'").replace("|", "\\|") + "`")


def number(value: float | None) -> str:
    """Formats with four digits.

    NaN and Inf keep their names; '-' stands for an unread value.
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if math.isfinite(value) else str(wording.number(value))


def evidence(value: Any) -> str:
    """Formats and truncates one value of a finding's evidence."""
    return printable.shortened(f"{value:.6g}" if isinstance(value, float) else str(value), MAX_EVIDENCE_CHARS)


def clock(time: int) -> str:
    """Returns the time of day in UTC."""
    formatted = instant(time) or "unknown"
    return formatted.partition("T")[2].rstrip("Z") or formatted
