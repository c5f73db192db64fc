"""The answer to a question for each tensor, as the report and the collector show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ammeter.whatif.forecast import Forecast, best_scale, forecasts, recommended, shares
from ammeter.whatif.histogram import Histogram
from ammeter.whatif.question import BEST, RECORDED, Question


@dataclass(frozen=True)
class FormatForecast:
    """A tensor in one format at the best scale for it.

    Attributes:
        lost: the share that overflows or becomes zero.
        fits: whether the range of the format suffices; null if too few elements were read.
    """

    format: str
    scale: float
    lost: float
    fits: bool | None


@dataclass(frozen=True)
class TensorForecast:
    """A tensor in the format and at the scale of the question.

    Attributes:
        elements: Of the tensor that were read or sampled from, in all readings.
        nonzero: Read elements that are finite and not zero. All shares are shares of these.
        first_step: Step of the first reading that counts.
        last_step: Step of the last one.
        scale: The factor; null if the tensor has no nonzero element.
        overflow: Share that has no finite number in the format.
        subnormal: Share that keeps fewer bits.
        flushed: Share that becomes zero.
        margin: Two standard errors of the shares; 0 if all elements were read.
        formats: Each format at its best scale, the narrowest first.
        recommended: The narrowest format whose range suffices; null if there is none, or if it is undecided.
        undecided: Whether too few elements were read.
    """

    name: str
    elements: int
    nonzero: int
    first_step: int
    last_step: int
    scale: float | None
    overflow: float | None
    subnormal: float | None
    flushed: float | None
    margin: float | None
    formats: list[FormatForecast]
    recommended: str | None
    undecided: bool


def answer(
    readings: Mapping[str, Sequence[Histogram]], question: Question, offset: int = 0
) -> Iterator[TensorForecast]:
    """Yields the tensors in the order in which they were first read.

    Args:
        offset: added to the steps.
    """
    for name, found in readings.items():
        scale = _scale(found, question)
        result = shares(found, question.format, scale) if scale else None
        by_format = forecasts(found)
        choice = recommended(by_format)
        yield TensorForecast(
            name=name,
            elements=sum(reading.elements for reading in found),
            nonzero=sum(reading.nonzero for reading in found),
            first_step=found[0].step + offset,
            last_step=found[-1].step + offset,
            scale=scale if result else None,
            overflow=result.overflow if result else None,
            subnormal=result.subnormal if result else None,
            flushed=result.flushed if result else None,
            margin=result.margin if result else None,
            formats=[_in(forecast) for forecast in by_format],
            recommended=choice.format if choice else None,
            undecided=choice is None and any(forecast.fits is None for forecast in by_format),
        )


def recommendations(tensors: Sequence[TensorForecast]) -> Counter[str]:
    """Counts the tensors by their recommended format; those without one under `undecided`, `none` and `zero`."""
    return Counter(map(_recommendation, tensors))


def _recommendation(tensor: TensorForecast) -> str:
    return tensor.recommended or ("undecided" if tensor.undecided else "none" if tensor.formats else "zero")


def _scale(readings: Sequence[Histogram], question: Question) -> float | None:
    if question.scale == BEST:
        return best_scale(readings, question.format)
    return readings[-1].scale if question.scale == RECORDED else float(question.scale)


def _in(forecast: Forecast) -> FormatForecast:
    return FormatForecast(forecast.format, forecast.scale, forecast.shares.lost, forecast.fits)
