"""Formats samples in the Prometheus text format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from ammeter_server.prometheus.metrics import METRICS, PROCESS_METRICS, Metric

END = b"# EOF\n"
"""Last line of a response in OpenMetrics format."""

MIN_EXPONENT_VALUE = 10**6
"""Numbers from this value on are written with an exponent, as Go's libraries do."""


RunSamples = Mapping[str, str]
"""Text lines by metric name."""


class Line(NamedTuple):
    """A line of the last time: its part before the value, the value, and all of it."""

    head: str
    value: float
    text: str


Lines = dict[tuple[str, ...], Line]
"""(metric, label values) -> the line."""


@dataclass
class Exposition:
    """Samples as lines of text.

    Values that are not finite are omitted, because every comparison with NaN is false.

    Attributes:
        before: The lines of the last time. A sample with the same labels has the same beginning, and often the same
            value.
        lines: The lines of this time.
    """

    before: Lines = field(default_factory=dict)
    lines: Lines = field(default_factory=dict)
    _texts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, value: float | str | None, *labels: str) -> None:
        """Adds one sample of a gauge or counter.

        None, and the strings "NaN" and "Infinity" that the tables store, are omitted.
        """
        if value is None or isinstance(value, str) or not math.isfinite(value):
            return
        key = (name, *labels)
        line = self.before.get(key)
        if line is None or line.value != value:
            head = _sample(name)(*map(_escaped, labels)) if line is None else line.head
            line = Line(head, value, f"{head}{_number(value)}\n")
        self.lines[key] = line
        self._texts.setdefault(name, []).append(line.text)

    def add_histogram(
        self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float | None, *labels: str
    ) -> None:
        """Adds one histogram.

        Args:
            counts: The number of values between the bound before and each bound, then those above all bounds.
            total: The sum of all values; None omits the `_sum` line.
        """
        below = list(map(_number, accumulate(counts)))
        format_lines = _histogram(name, tuple(bounds), total is not None)
        lines = format_lines(*map(_escaped, labels), *below, _number(total or 0))
        self._texts.setdefault(name, []).append(lines)

    @property
    def samples(self) -> RunSamples:
        """The lines added so far."""
        return {name: "".join(texts) for name, texts in self._texts.items()}


def text(samples: Sequence[RunSamples], is_open: bool) -> Iterator[bytes]:
    """Renders the merged samples without OpenMetrics' end line, one metric at a time.

    Args:
        is_open: True for OpenMetrics, in which the family of a counter has no suffix `_total`.
    """
    for metric in (*METRICS, *PROCESS_METRICS):
        lines = [by_metric[metric.name] for by_metric in samples if metric.name in by_metric]
        if lines:
            family = metric.name.removesuffix("_total") if is_open else metric.name
            head = f"# HELP {family} {metric.help}\n# TYPE {family} {metric.kind}\n"
            yield "".join([head, *lines]).encode()


@lru_cache
def _sample(name: str) -> Callable[..., str]:
    """Returns a formatter of the line up to its value, called with the label values."""
    return f"{name}{_labels(_named(name))} ".format


@lru_cache
def _histogram(name: str, bounds: tuple[float, ...], has_total: bool) -> Callable[..., str]:
    """Returns a formatter of all lines of one histogram.

    Its arguments are the label values, the cumulative counts up to each bound and in all, and the sum.
    """
    metric = _named(name)
    first = len(metric.labels)
    limits = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    lines = [f"{name}_bucket{_labels(metric, limit)} {{{first + place}}}\n" for place, limit in enumerate(limits)]
    if has_total:
        lines.append(f"{name}_sum{_labels(metric)} {{{first + len(limits)}}}\n")
    lines.append(f"{name}_count{_labels(metric)} {{{first + len(limits) - 1}}}\n")
    return "".join(lines).format


def _labels(metric: Metric, bound: str | None = None) -> str:
    """The label names with placeholders for their values; an empty string without labels."""
    places = {label: f"{{{place}}}" for place, label in enumerate(metric.labels)} | ({"le": bound} if bound else {})
    pairs = ",".join(f'{label}="{value}"' for label, value in sorted(places.items()))
    return f"{{{{{pairs}}}}}" if pairs else ""


@lru_cache
def _named(name: str) -> Metric:
    return next(metric for metric in (*METRICS, *PROCESS_METRICS) if metric.name == name)


@lru_cache(1024)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """Formats a number like Prometheus' own libraries."""
    if 0 <= value < MIN_EXPONENT_VALUE:
        return repr(float(value))
    digits = repr(float(value))
    dot = digits.find(".")
    if value < 0 or dot <= 6:
        return digits
    mantissa = f"{digits[0]}.{digits[1:dot]}{digits[dot + 1 :]}".rstrip("0.")
    return f"{mantissa}e+{dot - 1:02d}"
