"""What nonfinite-validation says: the validation that was seen, its cause as far as it is known, and the fix."""

from __future__ import annotations

from typing import Any

import msgspec

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.lifecycle import Lifecycle

LOGGED, OUTPUT = "logged", "output"
"""What showed a validation with NaN: a value that the program logged, or an output of the model."""

HALF = {"float16": "ends at 65504", "bfloat16": "has 8 significant bits"}

LARGE_INPUT = 16.0
"""Largest input of a module from which an overflow in float16 is a suspect: products of 256 such numbers reach it."""


class Validation(msgspec.Struct, frozen=True, array_like=True):
    """A validation with NaN or Inf.

    Attributes:
        source: LOGGED or OUTPUT, or empty.
        first: Step after which it was made.
        name: Name of the logged value, if one was logged.
        value: That value.
        data: Data of the event `evaluation.nonfinite`, for OUTPUT.
        trained_in: Dtype of most weights in training, for OUTPUT.
    """

    source: str = ""
    first: int = -1
    name: str = ""
    value: float = 0.0
    data: dict[str, Any] = {}
    trained_in: str = ""

    @property
    def origin(self) -> dict[str, Any]:
        origin = self.data.get("origin")
        return origin if isinstance(origin, dict) else {}

    @property
    def half_weights(self) -> str:
        """The dtype of the weights in evaluation, if it is half precision and that of the training is not."""
        dtype = str(self.data.get("weights") or "")
        return dtype if dtype in HALF and self.trained_in not in ("", *HALF) else ""

    def evidence(self) -> dict[str, Any]:
        data, origin = self.data, self.origin
        return {
            "metric": self.name or None,
            "value": wording.number(self.value) if self.name else data.get("value"),
            "outputs_read": data.get("read"),
            "outputs_nonfinite": data.get("nonfinite"),
            "dtype": data.get("dtype") or None,
            "weights": data.get("weights") or None,
            "weights_in_training": self.trained_in or None,
            "autocast": data.get("autocast") or None,
            "origin": origin.get("kind"),
            "op": origin.get("op"),
            "last_finite_absmax": origin.get("absmax"),
        }


def title(found: Validation, opened: Lifecycle) -> str:
    if found.source == LOGGED:
        return f"{found.name} is {wording.number(found.value)} {opened.since}, and the training loss is finite"
    origin, what = found.origin, "loss" if found.data.get("is_loss") else "output"
    if origin.get("kind") == "forward" and origin.get("module"):
        return f"{origin['module']} returns {_amount(origin)} in evaluation, so the {what} is {_values(found.data)}"
    return f"The model's {what} in evaluation is {_values(found.data)} {opened.since}"


def _amount(origin: dict[str, Any]) -> str:
    """Returns 'NaN', 'Inf' or 'NaN and Inf'; an event of an earlier agent counts neither."""
    return " and ".join(word for name, word in (("nans", "NaN"), ("infs", "Inf")) if origin.get(name)) or "NaN or Inf"


def cause(found: Validation, opened: Lifecycle, losses: int, finite_since: int, outputs_finite: int) -> str:
    training = (
        f"{losses} losses of applied steps after it were finite"
        if losses > 1
        else f"the losses since step {finite_since} were finite"
    )
    if found.source == LOGGED:
        return (
            f"The program logged {found.name}={wording.number(found.value)} {opened.since}. The training is not"
            f" affected so far: {training}.{_of_outputs(outputs_finite)}"
        )
    data = found.data
    what = "losses" if data.get("is_loss") else "outputs"
    mode = "in eval mode" if data.get("eval") else "without gradients, in training mode"
    caller = f" at {data['caller']}" if data.get("caller") else ""
    logged = f" The program logged {found.name}={wording.number(found.value)}." if found.name else ""
    return (
        f"{_of_origin(found)}In the evaluation after step {opened.first}{caller}, {_share(data)} {what} of the model"
        f" contained {_values(data)} ({_computed(data)}; {mode}). The training is not affected so far: {training}."
        f"{logged}{_weights(found)}"
    )


def _share(data: dict[str, Any]) -> str:
    read, bad = data.get("read"), data.get("nonfinite")
    return f"all {read}" if read == bad and read != 1 else f"{bad} of {read}"


def _values(data: dict[str, Any]) -> str:
    return "Inf" if "Infinity" in str(data.get("value")) else "NaN"


def _computed(data: dict[str, Any]) -> str:
    autocast = f", under autocast to {data['autocast']}" if data.get("autocast") else ""
    return f"{data.get('dtype')}{autocast}"


def _of_outputs(outputs_finite: int) -> str:
    if outputs_finite < 0:
        return (
            " No output of the watched model was read in evaluation: the program evaluates another model, such as a"
            " copy, or none."
        )
    return (
        f" The outputs of the model that were read in evaluations since step {outputs_finite} contain no NaN. What"
        " remains is what comes after them: the loss function, its targets, or an average of no values, which is 0/0."
    )


def _weights(found: Validation) -> str:
    if not found.half_weights:
        return ""
    return (
        f" The weights were {found.half_weights} in the evaluation and {found.trained_in} in training:"
        f" {found.half_weights} {HALF[found.half_weights]}."
    )


def _of_origin(found: Validation) -> str:
    origin = found.origin
    most = f"finite, at most {origin['absmax']:.4g}" if isinstance(origin.get("absmax"), float) else "finite"
    place = origin.get("module") or "The model's own code"
    if origin.get("kind") == "input":
        return f"The argument {origin.get('input') or 'of the model'} contained NaN or Inf already. "
    if origin.get("kind") == "weights":
        kind = "a buffer" if origin.get("buffer") else "a weight"
        return f"{origin.get('tensor')}, {kind}, contains NaN or Inf. "
    if origin.get("kind") == "forward":
        kind = ", ".join(str(origin[name]) for name in ("class", "dtype") if origin.get(name))
        amounts = " and ".join(
            f"{origin[name]} {word}" for name, word in (("nans", "NaN"), ("infs", "Inf")) if origin.get(name)
        )
        return f"{place} ({kind}) returned {amounts} from inputs that are {most}. "
    return ""


def fix(found: Validation, outputs_finite: int) -> str:
    origin = found.origin
    if origin.get("kind") == "input":
        return (
            f"Check the validation data for NaN and Inf: {origin.get('input') or 'the argument'} has them before the"
            " model runs. Apply to it the filters of the training data."
        )
    if origin.get("kind") == "weights" and origin.get("buffer"):
        return (
            f"Call reset_running_stats() on {origin.get('module') or 'its layer'} if the buffer is a running average,"
            f" and train before the next evaluation; else load the buffer from {wording.earlier(found.first)}. Then"
            " check which batch made it so: a step that the scaler skips does not undo buffers."
        )
    if found.half_weights:
        return (
            "Evaluate in the precision of the training: remove .half() before the evaluation and run it under the"
            " autocast of the training, or in bfloat16, which has the range of float32."
        )
    if origin.get("kind") == "forward":
        place = origin.get("module") or "the model"
        is_large = isinstance(origin.get("absmax"), float) and origin["absmax"] >= LARGE_INPUT
        float32 = ""
        if origin.get("dtype") == "float16" and is_large:
            float32 = f" Its inputs reach {origin['absmax']:.4g}: run it in float32, in case it overflows in float16."
        branch = "its branch on self.training, and " if found.data.get("eval") else ""
        return (
            f"Look into the forward() of {place} for what differs in evaluation: {branch}a division by a count or a"
            f" running value that is zero there.{float32}"
        )
    if found.source == LOGGED and outputs_finite < 0:
        return (
            "Check that the validation set has batches and targets, and divide by max(count, 1). Pass the model that"
            " is evaluated, such as an average, to watch(..., also={'ema': average}), and look for NaN in its buffers."
        )
    if found.source == LOGGED:
        return (
            "Count batches and targets of the validation set and divide by max(count, 1). Compute the loss of each"
            " batch alone, and look at the targets of one that is not finite: all ignored, or out of range."
        )
    return (
        "Find the batch: call torch.isfinite(output).all() after each batch of the validation. Run that batch in"
        " model.train() and in float32: if it is finite in training mode, check the buffers of the normalization"
        " layers; if it is finite in float32, evaluate without half precision."
    )
