"""Positions of curves in an inline SVG of fixed width; the template draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ammeter.report.notebook.curves import DRAWN, SKIPPED_TITLE, SLOTS, Curve

WIDTH, PLOT_WIDTH = 640, 560
"""Units of the picture and of its curves. The numbers of the axis stand beside them."""

PANEL_HEIGHT, PLOT_TOP, PLOT_HEIGHT, MARKS_HEIGHT = 78, 18, 52, 14
"""Units of a panel: its title, then its curve, or only marks."""

LOGARITHMIC = (DRAWN["scale"], DRAWN["grad_norm"])
"""Curves whose values differ by powers."""


MAX_LINEAR_RATIO = 1000.0
"""Of the highest to the lowest value of other curves: beyond it a pixel hides the course of the small ones."""


@dataclass(frozen=True)
class Panel:
    """One curve as it is drawn.

    Attributes:
        top: Its position in the picture.
        points: The corners of the line.
        dots: Points that no line reaches.
        marks: Positions of steps that are skipped or not finite.
    """

    top: int
    height: int
    title: str
    note: str
    high: str
    low: str
    points: str
    dots: Sequence[tuple[float, float]]
    marks: Sequence[float]


def panels_of(curves: Sequence[Curve]) -> list[Panel]:
    """Returns the panels from top to bottom."""
    panels: list[Panel] = []
    for curve in curves:
        top = panels[-1].top + panels[-1].height if panels else 0
        panels.append(_panel(curve, top))
    return panels


def _panel(curve: Curve, top: int) -> Panel:
    marks = [_x(slot) for slot in curve.bad.nonzero()[0].tolist()]
    height = PANEL_HEIGHT if curve.has_line else PLOT_TOP + MARKS_HEIGHT + 8
    if not curve.has_line:
        return Panel(top, height, curve.title, _note(curve), "", "", "", (), marks)
    low, high = float(min(curve.low[curve.low == curve.low])), float(max(curve.high[curve.high == curve.high]))
    is_log = low > 0 and high / low > (2 if curve.title in LOGARITHMIC else MAX_LINEAR_RATIO)
    place = _placed(low, high, is_log)
    corners = [
        (_x(slot), place(value))
        for slot, (least, most) in enumerate(zip(curve.low.tolist(), curve.high.tolist(), strict=True))
        if not math.isnan(least)
        for value in ((least,) if least == most else (least, most))
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners) if len(corners) > 1 else ""
    dots = corners if len(corners) <= MAX_DOTS else ()
    title = f"{curve.title} (logarithmic)" if is_log else curve.title
    return Panel(top, height, title, _note(curve), _number(high), _number(low), line, dots, marks)


MAX_DOTS = 24
"""Values up to which each has a dot, so that a reader sees how few there are."""


def _placed(low: float, high: float, is_log: bool) -> Callable[[float], float]:
    """Returns the function from a value to its height in the plot; a constant is in the middle."""
    bottom, top = (math.log(low), math.log(high)) if is_log else (low, high)

    def place(value: float) -> float:
        share = 0.5 if top == bottom else ((math.log(value) if is_log else value) - bottom) / (top - bottom)
        return PLOT_HEIGHT * (1 - share)

    return place


def _x(slot: int) -> float:
    return (slot + 0.5) * PLOT_WIDTH / SLOTS


def _note(curve: Curve) -> str:
    newest = f"{_number(curve.newest)} at last" if curve.newest is not None else ""
    if curve.title == SKIPPED_TITLE:
        return str(curve.count)
    return ", ".join(filter(None, (newest, f"{curve.count} not finite (red)" if curve.count else "")))


def _number(value: float) -> str:
    return f"{value:.5g}"
