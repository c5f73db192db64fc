"""Escapes report values for Markdown, because names and data of a run may contain anything."""

from __future__ import annotations

import math
from typing import Any

from ammeter.report.run_summary import instant
from ammeter.verdicts.framework import wording
from ammeter.wire import printable

MAX_CHARS = 200
"""Maximum number of characters shown of a piece of evidence."""


def text(value: Any) -> str:
    """Escapes markup and table separators, and removes control characters."""
    plain = printable.sentence(str(value)).replace("&", "&amp;").replace("<", "&lt;")
    for mark in ("\\", "|", "*", "_", "[", "]", "`", "~", "#", "$"):
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def code(value: Any) -> str:
    """Formats a name as inline code."""
    plain = printable.line(" ".join(str(value).split()))
    return "`" + plain.replace("`", "'").replace("|", "\\|") + "`"


def number(value: float | str | None) -> str:
    """Formats with four digits.

    NaN and Inf keep their names; '-' stands for an unread value.
    """
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:.4g}" if math.isfinite(value) else str(wording.number(value))


def short(value: Any) -> str:
    said = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text(said if len(said) <= MAX_CHARS else f"{said[:MAX_CHARS]} ...")


def clock(time: int) -> str:
    said = instant(time) or "unknown"
    return said.partition("T")[2].rstrip("Z") or said
