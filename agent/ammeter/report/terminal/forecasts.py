"""Prints what the tensors of a run would lose in another format or at another scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ammeter.verdicts.framework import wording
from ammeter.whatif.answer import TensorForecast, recommendations
from ammeter.whatif.forecast import MAX_LOST_SHARE
from ammeter.whatif.formats import FORMATS
from ammeter.whatif.question import BEST, RECORDED, Question
from ammeter.wire import printable

if TYPE_CHECKING:
    from ammeter.report.what_if import WhatIf

MAX_ROWS = 40
"""Rows of the table; JSON has all."""

MIN_SHARE = 0.0005
"""Smaller shares are printed as 0."""

MANY = 0.3
"""Shares from here on are printed as a warning; gradient-underflow has the same threshold."""

UNREAD = (
    "Nothing was read for this question: the agent counts the exponents of each tensor for the first time beside its "
    "third full reading of the gradients. A longer run, a higher AMMETER_BUDGET or preset='full' reads more."
)


def show(forecast: WhatIf, console: Console | None = None) -> None:
    """Prints a table of the tensors that lose most, and how many could use which format."""
    console = console or Console(highlight=False)
    console.print(Rule(Text(_title(forecast.question), "bold"), align="left", style="dim"))
    if not forecast.tensors:
        console.print(UNREAD)
        console.print()
        return
    worst = sorted(forecast.tensors, key=_loss, reverse=True)
    console.print(_table(worst[:MAX_ROWS], forecast.question))
    for line in _notes(forecast, len(worst) - MAX_ROWS):
        console.print(Text(line))
    console.print()


def _title(question: Question) -> str:
    scales = {BEST: "at the best scale of each tensor", RECORDED: "at the recorded scale"}
    at = scales[question.scale] if isinstance(question.scale, str) else f"at a scale of {wording.scale(question.scale)}"
    return f"What if: {question.of}s in {question.format.label} {at}"


def _loss(tensor: TensorForecast) -> tuple[float, float]:
    return (tensor.overflow or 0.0) + (tensor.flushed or 0.0), tensor.subnormal or 0.0


def _table(tensors: Sequence[TensorForecast], question: Question) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column("tensor", overflow="fold", ratio=1)
    if isinstance(question.scale, str):
        table.add_column("scale", justify="right", no_wrap=True)
    for name in ("overflow", "subnormal", "zero"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("can go down to, at", no_wrap=True)
    for tensor in tensors:
        scale = [_power(tensor.scale)] if isinstance(question.scale, str) else []
        shares = (tensor.overflow, tensor.subnormal, tensor.flushed)
        lost = [_share(share, tensor.margin, is_lost=at != 1) for at, share in enumerate(shares)]
        table.add_row(Text(printable.line(tensor.name)), *scale, *lost, Text(_recommendation(tensor)))
    return table


def _share(share: float | None, margin: float | None, *, is_lost: bool) -> Text:
    if share is None:
        return Text("–", "dim")
    unsure = f" ±{100 * margin:.0f}" if margin and margin >= 0.02 else ""
    text = "0" if share < MIN_SHARE else wording.percent(share)
    limit = MAX_LOST_SHARE if is_lost else MANY
    return Text(text + unsure, "bold red" if share > limit and is_lost else "yellow" if share > limit else "")


def _recommendation(tensor: TensorForecast) -> str:
    for forecast in tensor.formats:
        if forecast.format == tensor.recommended:
            return f"{FORMATS[forecast.format].label}, {_power(forecast.scale)}"
    if not tensor.formats:
        return "only zeros were read"
    return "too few elements read" if tensor.undecided else "float32"


def _power(scale: float | None) -> str:
    """Returns '2^16'."""
    if scale is None:
        return "–"
    text = wording.scale(scale)
    return text.partition("(")[2].rstrip(")") or text


def _notes(forecast: WhatIf, hidden: int) -> Iterator[str]:
    if hidden > 0:
        yield f"{wording.count(hidden, 'more tensor')} that lose less; --json has all."
    yield _counts(forecast.tensors)
    first = min(tensor.first_step for tensor in forecast.tensors)
    last = max(tensor.last_step for tensor in forecast.tensors)
    yield (
        f"Shares are of nonzero elements, read at steps {first} to {last}. A tensor can go down to a format that loses "
        f"at most {wording.percent(MAX_LOST_SHARE)} of them at its best scale. This is about the range of the format; "
        "what its fewer bits do to training is not judged."
    )


def _counts(tensors: Sequence[TensorForecast]) -> str:
    counts = recommendations(tensors)
    parts = [f"{counts[name]} down to {FORMATS[name].label}" for name in FORMATS if counts[name]]
    parts += [f"{counts['none']} not below float32"] if counts["none"] else []
    parts += [f"{counts['undecided']} undecided"] if counts["undecided"] else []
    parts += [f"{counts['zero']} only zeros"] if counts["zero"] else []
    return f"Of {wording.count(len(tensors), 'tensor')}: {', '.join(parts)}."
