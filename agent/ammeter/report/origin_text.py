"""Describes the origin of the first NaN or Inf in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Data = Mapping[str, Any]


def sentence(data: Data) -> str:
    """Returns the sentence on an event `origin.found`.

    Raises:
        KeyError: the event is of another version.
    """
    kind = data["kind"]
    if kind == "input":
        name = f" {data['input']}" if data.get("input") else ""
        return f"an argument of the model{name} contained NaN or Inf already{_amounts(data)}: check the data"
    if kind == "gradient":
        return "the first NaN or Inf was in a gradient that the loss contains: a scaled one can overflow"
    place = data.get("module") or ("the loss, behind the model" if data.get("op") == "loss" else "the model's own code")
    if data.get("behind"):
        place = f"the code between {data['behind']} and the loss"
    if kind == "weights":
        holds = f"a buffer of {place} is" if data.get("buffer") else f"the weights of {place} are"
        return f"{holds} not finite ({data.get('tensor')}): go back to a checkpoint"
    if kind == "forward" and data.get("op") == "loss":
        return "the output of the model is finite and the loss is not: check the targets and the loss function"
    if data.get("confidence") == "frontier":
        return (
            f"{data.get('tensor') or place} is the last tensor whose gradient is not finite{_amounts(data)}: the"
            f" backward pass of {place} made it, or the loss scale was too high"
        )
    before = f", from at most {data['absmax']:.4g}" if data.get("absmax") else ""
    op = f" ({data['op']})" if data.get("op") and data.get("op") != "loss" else ""
    return (
        f"the first NaN or Inf came from {kind} at {place}{op}{_amounts(data)}{before}"
        f"; {_METHODS.get(data['confidence'], data['confidence'])}"
    )


_METHODS = {
    "hooks": "found by checking each module",
    "replay": "found by repeating the forward pass",
    "graph": "found in the graph of the loss",
}
"""Method that found the origin, by the value in the event."""


def _amounts(data: Data) -> str:
    counts = [f"{data[name]} {word}" for name, word in (("nans", "NaN"), ("infs", "Inf")) if data.get(name)]
    return f" with {' and '.join(counts)}" if counts else ""
