"""Texts of findings on a loss scale that the program applies itself, without a GradScaler."""

from __future__ import annotations

from typing import Any, NamedTuple

from ammeter.verdicts.framework import wording

NORMALIZING = ("Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop")
"""Ends of the names of optimizers that divide gradients by their usual size."""


class Text(NamedTuple):
    cause: str
    fix: str


def loss_not_scaled(data: dict[str, Any]) -> Text:
    loss = "a loss of which a part is" if data.get("scaled_too") else "a loss that is"
    return Text(
        f"{_call(data)} was called on {loss} not multiplied by the program's own loss scale, but the program"
        f" divides its gradients by {_scale(data)} before the step of {data.get('optimizer')}. They end up that many"
        " times too small, and small gradients were not protected from underflow in float16.",
        f"Multiply every part of the loss by the scale before {_call(data)}.",
    )


def gradients_not_unscaled(data: dict[str, Any]) -> Text:
    step = f"{data.get('optimizer')}.step(){_at(data)}"
    return Text(
        f"The program multiplies its loss by a loss scale of {_scale(data)}, and {step} used gradients that were not"
        f" divided by it.{effect_on(str(data.get('optimizer') or ''))}",
        f"Divide the gradients by the scale before {step}, and skip the step if they contain NaN or Inf.",
    )


def effect_on(optimizer: str) -> str:
    """Returns a sentence with a leading space: what scaled gradients do to the steps of this optimizer."""
    name = optimizer.partition(" of ")[0]
    if name == "SGD":
        return " SGD takes steps that many times too large."
    if name.endswith(NORMALIZING):
        return f" {name} divides gradients by their usual size, which hides the mistake."
    return " SGD takes steps that many times too large; Adam normalizes them, which hides the mistake."


def weights_updated(data: dict[str, Any]) -> Text:
    """Returns the text on weights that changed without a step() that the agent can observe."""
    scale, name = _scale(data), data.get("optimizer")
    at = f" at {data['backward']}" if data.get("backward") else ""
    usual = (
        f"; in the steps before, by {data['usual']:.3g} times, which is that number divided by the scale."
        if data.get("usual")
        else ", which is the learning rate of the optimizer, not divided by the scale."
    )
    divide = "Divide the gradients by the scale" if data.get("own") else f"Call scaler.unscale_() for {name}"
    return Text(
        f"The weights of {name} were updated with gradients that are still multiplied by the loss scale of {scale}."
        f" They changed by {data['factor']:.3g} times the gradients that backward(){at} had left{usual}",
        f"{divide} before each update of the weights, on every path through the training loop, and make no update if"
        " they contain NaN or Inf. Look for code that changes weights without a step() of the optimizer.",
    )


def mixed_scale(data: dict[str, Any]) -> Text:
    scale = data.get("scale")
    share = f" In the sum the divided gradients count 1 part in {scale:g}." if scale else ""
    return Text(
        f"{_call(data)} ran after the program had divided the gradients of {data.get('optimizer')} by its own"
        f" loss scale, and added gradients that are multiplied by {_scale(data)}.{share}",
        f"Divide the gradients by the scale once per step, after the last {_call(data)}.",
    )


def clip_before_unscale(scale: float, clip: str, limit: str) -> Text:
    """Returns the text on one of torch's clips.

    Args:
        clip: the function and its place.
        limit: what it limits, and what remains.
    """
    return Text(
        f"{clip} clips gradients that are still multiplied by the program's own loss scale of {wording.scale(scale)},"
        f" so they are far too small after the division by it. {limit}",
        f"Divide the gradients by the scale before {clip}.",
    )


def small_after_division(data: dict[str, Any]) -> Text:
    """Returns the text on a clip that is not torch's, shown by what is left of the gradients."""
    left = float(data.get("left") or 0.0)
    return Text(
        f"The gradients that reached {data.get('optimizer')} were {left:.2g} of their usual size, although backward()"
        f" had produced gradients of the usual size, multiplied by the program's own loss scale of {_scale(data)}. All"
        " sampled elements shrank alike, by more than that scale, as they do if their norm is limited before they are"
        " divided.",
        "Find the code that limits the gradients between backward() and step(), and divide the gradients by the scale"
        " before it. If the program makes them smaller on purpose, silence this verdict.",
    )


def _scale(data: dict[str, Any]) -> str:
    return wording.scale(float(data["scale"]))


def _call(data: dict[str, Any]) -> str:
    """Returns the call that computes gradients, with its place."""
    return f"{data.get('call') or 'backward()'}{_at(data)}"


def _at(data: dict[str, Any]) -> str:
    return f" at {data['caller']}" if data.get("caller") else ""
