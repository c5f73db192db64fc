"""Draws a run as an SVG: a panel for each column, with the place of the finding marked. Readable on light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from xml.sax.saxutils import escape

from website.pictures.training import Curve, Run

WIDTH, PANEL_HEIGHT, GAP = 640, 76, 34
LEFT, RIGHT, TOP = 66, 16, 64
"""In pixels: the size of a panel, the space above it, and the margins."""

MAX_POINTS = 120
"""Points of a curve: more do not show at this width, and a picture stays below 10 KB."""

COLOURS = ("a", "b", "c")
STYLE = (
    "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#444}.h{font-weight:600;fill:#111}"
    ".f{fill:none;stroke:#ccc}.l{fill:none;stroke-width:1.4}.a{stroke:#1f5fbf}.b{stroke:#b35c00}.c{stroke:#777}"
    ".ta{fill:#1f5fbf}.tb{fill:#b35c00}.tc{fill:#777}"
    ".m{stroke:#c22;stroke-width:1.2}.o{stroke:#c22;stroke-dasharray:3 3}.r{fill:#c22}.s{stroke:#b35c00}"
    "@media(prefers-color-scheme:dark){svg{background:#1c1f26}text{fill:#bbb}.h{fill:#eee}.f{stroke:#444}"
    ".a{stroke:#7ab0ff}.b{stroke:#f0a050}.c{stroke:#999}.ta{fill:#7ab0ff}.tb{fill:#f0a050}.tc{fill:#999}.m,.o{stroke:#ff7a70}.r{fill:#ff7a70}.s{stroke:#f0a050}}"
)
LABELS = {
    "scale": "loss scale",
    "grad_norm": "gradient norm",
    "val_loss": "validation loss",
    "low_precision_share": "share of FLOPs in half precision",
    "cast_bytes": "bytes written by casts",
    "step_seconds": "seconds per step",
    "optimizer_lr": "learning rate",
    "update_ratio": "update / weight",
    "grad_agreement": "cosine of neighbouring gradients",
    "weights_nonfinite": "NaN and Inf in weights",
    "local_nonfinite": "NaN and Inf before the reduction",
    "reduced_nonfinite": "NaN and Inf after the reduction",
    "grad_bits": "significant bits of gradients",
    "weights_checksum": "checksum of the weights",
    "grad.zeros": "zeros in the gradient",
    "grad.subnormals": "subnormal elements in the gradient",
    "update.lost": "share of lost updates",
}
LOGARITHMIC = {"scale": 2, "grad_norm": 10, "update_ratio": 10}
"""Column -> the base of its axis."""


def picture(run: Run) -> str:
    """Returns the picture as SVG."""
    ends = [curve.steps[-1] for curves in run.panels.values() for curve in curves]
    last = max([*ends, run.opened_step, 1])
    height = TOP + len(run.panels) * (PANEL_HEIGHT + GAP) - 8

    def x(step: float) -> float:
        return LEFT + step / last * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<title>{escape(run.verdict)}</title><desc>{escape(run.title)}</desc><style>{STYLE}</style>",
        f'<text class="h" x="12" y="20">{escape(_cut(run.title))}</text>',
        f'<text x="12" y="37">first step {run.first_step} (line), found at {run.opened_step} (dashes); '
        f"{last + 1} steps</text>",
    ]
    for place, (column, curves) in enumerate(run.panels.items()):
        parts += _panel(run, column, curves, TOP + place * (PANEL_HEIGHT + GAP), x)
    for step in sorted({0, last}):
        anchor = "start" if step == 0 else "end"
        parts.append(f'<text x="{x(step):.0f}" y="{height - 12}" text-anchor="{anchor}">{step}</text>')
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True)
class _Axis:
    """The vertical axis of a panel. numbers: the different heights in it, in order. base: of logarithms, or 0."""

    top: float
    base: int
    numbers: list[float]

    @property
    def bottom(self) -> float:
        return self.top + PANEL_HEIGHT

    def y(self, height: float) -> float:
        low, high = self.numbers[0], self.numbers[-1]
        low, high = (low, high) if low < high else (low - 1, high + 1)
        return self.bottom - 4 - (height - low) / (high - low) * (PANEL_HEIGHT - 8)

    def height(self, value: float) -> float | None:
        """The place of a value on the axis; None if it has none."""
        if not math.isfinite(value) or (self.base and value <= 0):
            return None
        return math.log(value, self.base) if self.base else value

    def label(self, height: float) -> str:
        return f"2^{height:.0f}" if self.base == 2 else f"{self.base**height if self.base else height:.3g}"


def _axis(column: str, curves: list[Curve], top: float) -> _Axis:
    empty = _Axis(top, LOGARITHMIC.get(column, 0), [])
    heights = {empty.height(value) for curve in curves for value in curve.values} - {None}
    return replace(empty, numbers=sorted(height for height in heights if height is not None))


def _panel(run: Run, column: str, curves: list[Curve], top: float, x: Callable[[float], float]) -> Iterator[str]:
    axis = _axis(column, curves, top)
    yield f'<text x="{LEFT}" y="{top - 6}">{escape(_label(column))}{_legend(curves)}</text>'
    yield f'<rect class="f" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL_HEIGHT}"/>'
    if len(axis.numbers) > 1:
        yield f'<text x="{LEFT - 6}" y="{top + 11}" text-anchor="end">{axis.label(axis.numbers[-1])}</text>'
    if axis.numbers:
        yield f'<text x="{LEFT - 6}" y="{axis.bottom - 2}" text-anchor="end">{axis.label(axis.numbers[0])}</text>'
    for curve, colour in zip(curves, COLOURS, strict=False):
        yield from _curve(curve, colour, axis, x)
    if column == "scale" and run.skipped:
        yield from _skipped(run.skipped, axis, x)
    for step, mark in ((run.first_step, "m"), (run.opened_step, "o")):
        yield f'<path class="{mark}" d="M{x(step):.1f} {top}V{axis.bottom}"/>'


def _skipped(steps: list[int], axis: _Axis, x: Callable[[float], float]) -> Iterator[str]:
    """Ticks below the scale, and their number, because some may be left out."""
    ticks = "".join(f"M{x(step):.0f} {axis.bottom}v-6" for step in steps[:: 1 + len(steps) // MAX_POINTS])
    yield f'<path class="s" d="{ticks}"/>'
    yield f'<text x="{WIDTH - RIGHT}" y="{axis.top - 6}" text-anchor="end">{len(steps)} skipped (ticks)</text>'


def _label(column: str) -> str:
    name, _, tensor = column.partition("/")
    words = LABELS.get(name, name.partition("@")[0])
    return f"{words} of {tensor}" if tensor else words


def _legend(curves: list[Curve]) -> str:
    """The names of several curves, each in its colour."""
    named = zip(curves, COLOURS, strict=False)
    return "".join(f' <tspan class="t{colour}">{escape(curve.label)}</tspan>' for curve, colour in named if curve.label)


def _curve(curve: Curve, colour: str, axis: _Axis, x: Callable[[float], float]) -> Iterator[str]:
    """A line for the numbers, and triangles at the top for NaN and Inf."""
    words, marks, pen = [], [], "M"
    for step, value in _thinned(curve):
        height = axis.height(value)
        if height is not None:
            words.append(f"{pen}{x(step):.0f} {axis.y(height):.0f}")
            pen = "L"
        else:
            pen = "M"
            if not math.isfinite(value):
                marks.append(f"M{x(step):.0f} {axis.top}l3 6h-6z")
    if words:
        yield f'<path class="l {colour}" d="{_joined(words)}"/>'
    if marks:
        yield f'<path class="r" d="{"".join(dict.fromkeys(marks))}"/>'


def _joined(words: list[str]) -> str:
    """A line of one point gets a length, or it would be invisible."""
    following = [*words[1:], "M"]
    return "".join(
        f"{word}h1" if {word[0], after[0]} == {"M"} else word for word, after in zip(words, following, strict=True)
    )


def _thinned(curve: Curve) -> Iterator[tuple[int, float]]:
    """The lowest and the highest value of each of equal parts, in order; NaN and Inf stay."""
    points = list(zip(curve.steps, curve.values, strict=True))
    size = math.ceil(2 * len(points) / MAX_POINTS)
    if size <= 2:
        yield from points
        return
    for start in range(0, len(points), size):
        part = points[start : start + size]
        finite = [point for point in part if math.isfinite(point[1])]
        kept = {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])} if finite else set()
        broken = next((point for point in part if not math.isfinite(point[1])), None)
        yield from sorted(kept | ({broken} if broken else set()))


def _cut(title: str, limit: int = 92) -> str:
    return title if len(title) <= limit else f"{title[: limit - 1]}…"
