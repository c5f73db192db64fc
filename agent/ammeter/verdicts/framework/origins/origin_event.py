"""The origin of the first NaN or Inf of a step, from an `origin.found` event."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from ammeter.verdicts.framework.origins import trial_wording
from ammeter.wire.frames import Event

MAX_NAME_CHARS = 120
"""Maximum characters of a stored name."""

UNFINISHED = "the end of the program"
"""The call of a loss that the program did not pass on to backward(), because it ended itself."""

CONSEQUENCES = (
    "diverged",
    "nonfinite-weights",
    "nonfinite-loss",
    "nonfinite-gradient",
    "nonfinite-validation",
    "scale-collapse",
    "overflow-storm",
    "poisoned-buffers",
)
"""Ids of verdicts that follow from a forward pass with NaN or Inf."""


class NonfiniteOrigin(msgspec.Struct, frozen=True, array_like=True):
    """The origin of the first NaN or Inf of a step.

    Attributes:
        first: First bad step in a row.
        kind: input, weights, forward, backward, or gradient for one that the loss contains; empty while unknown.
        op: The operator; `loss` for code after the model.
        absmax: Largest finite number of the inputs, -1 if not read.
        buffer: Whether `tensor` is a buffer and not a weight.
        read: Whether inputs and outputs were read. False if the origin was deduced from the gradients.
        behind: The last module with weights before the operator, if there is none between it and the loss.
        caller: The line that passed the loss to backward() or scale(), if its graph showed the origin.
        call: The call that received the loss on that line.
        line: The line that called the operator, if a later bad step showed it.
        reason: `targets` or `row` for 0/0, `constant` for an operand that was not finite, `range` if float64 would make
            the output finite, or nothing.
        trial: What the operator did when the agent ran it again, see trial_wording; empty if it did not.
        exact: Largest number of its output in float64, -1 if not finite or not known.
        beyond: Largest number of the model's argument `input`, which is finite, if float16 does not have it.
        reproducer: A program in the run's folder that shows it; empty if there is none.
        device: The kind of device on which it ran again, such as cpu.
    """

    step: int = -1
    first: int = -1
    kind: str = ""
    module: str = ""
    tensor: str = ""
    input: str = ""
    micro_batch: int = -1
    sample: int = -1
    type: str = ""
    op: str = ""
    dtype: str = ""
    absmax: float = -1.0
    nans: int = 0
    infs: int = 0
    buffer: bool = False
    read: bool = True
    behind: str = ""
    caller: str = ""
    reason: str = ""
    call: str = "backward()"
    line: str = ""
    trial: str = ""
    exact: float = -1.0
    reproducer: str = ""
    device: str = ""
    beyond: float = -1.0

    @property
    def is_first(self) -> bool:
        """Whether it is the first operator with a NaN or an Inf in the graph of the loss."""
        return bool(self.caller)

    @property
    def operator(self) -> str:
        """Returns the operator's name without autograd's ending, such as Softmax for SoftmaxBackward0."""
        return re.sub(r"Backward\d*$", "", self.op)

    @property
    def place(self) -> str:
        """Returns the module's path, or a description if there is no module."""
        if self.op == "loss":
            return "the loss function, after the model"
        if self.behind:
            return f"the code between {self.behind} and the loss"
        return self.module or "the model's own code"

    def refines(self, other: NonfiniteOrigin) -> bool:
        """Whether this later origin of the series names a module, line or input that the other leaves open.

        The graph of a loss names the module around an operator; hooks name the part of it that has the operator.
        """
        if other.kind != "forward" or self.kind != "forward":
            return False
        if self.line and not other.line and (self.op, self.behind) == (other.op, other.behind):
            return True
        if self.beyond >= 0 > other.beyond and (self.op, self.module) == (other.op, other.module):
            return True
        if not self.module or other.behind:
            return False
        return not other.module or self.module.startswith(f"{other.module}.")

    def refined_by(self, later: NonfiniteOrigin) -> NonfiniteOrigin:
        """Returns the later origin, with the trial of its operator if only this one has it."""
        if not self.trial or later.trial or self.op != later.op:
            return later
        names = ("trial", "exact", "reproducer", "device", "dtype", "line", "caller", "call")
        return msgspec.structs.replace(later, **{name: getattr(self, name) for name in names})

    def evidence(self) -> dict[str, Any]:
        """Returns the operator and the largest finite number of its inputs."""
        return {"op": self.op or None, "last_finite_absmax": self.absmax if self.absmax >= 0 else None}

    def trial_evidence(self) -> dict[str, Any]:
        """Returns what is known of an operator that ran again. Agents before 0.2.0 run none."""
        known = {"trial": self.trial, "reproducer": self.reproducer}
        return {name: value for name, value in known.items() if value}

    def fix(self) -> str:
        """Returns what to do about an operator that ran again."""
        backward = self.kind == "backward"
        place = self.line or (self.place if self.module else f"{self.operator} in {self.place}")
        shown = f" {self.reproducer} in the run's folder shows it without the training." if self.reproducer else ""
        return trial_wording.fix(self.trial, place, self.op, self.dtype, backward=backward) + shown

    def words(self) -> str:
        """Returns one sentence with a leading space; empty while nothing is known."""
        if self.kind == "input":
            return f" {self.argument[0].upper()}{self.argument[1:]} contained NaN or Inf already{self._where()}."
        if self.kind == "weights":
            kind = "buffer of the model" if self.buffer else "weight"
            return f" The first NaN or Inf was in {self.tensor or self.place}, a {kind}."
        if self.kind == "gradient":
            return (
                " The NaN or Inf is in a gradient that the loss contains, from autograd.grad() with create_graph=True."
            )
        if not self.kind:
            return ""
        if self.op == "loss" and self.kind == "forward":
            most = f", at most {self.absmax:.4g}" if self.absmax >= 0 else ""
            return (
                f" The model's outputs are finite{most}: the NaN or Inf comes from the targets, which are not read, or"
                " from the loss function."
            )
        how = ", ".join(filter(None, ("" if self.op == "loss" else self.op, self.dtype, self.line)))
        if self.kind == "forward" and self.is_first:
            most = f", from inputs of at most {self.absmax:.4g}" if self.absmax >= 0 else ""
            is_passed = self.behind and self.call != UNFINISHED and not self.line
            line = f" {self.caller} passed the loss on to {self.call}." if is_passed else ""
            if self.reason == "constant":
                most = f"; the other inputs are at most {self.absmax:.4g}" if self.absmax >= 0 else ""
                return (
                    f" In the graph of the loss, {self.place}{f' ({how})' if how else ''} received a NaN or Inf from"
                    f" outside its graph: {self._outside}{most}.{line}"
                )
            return (
                f" In the graph of the loss, {self.place}{f' ({how})' if how else ''} made the {self._what}{most}."
                f"{line}{trial_wording.cause(self.trial, self.dtype, self.exact)}"
            )
        if self.kind == "forward" and self.absmax < 0:
            return f" The output of {self.place}{f' ({how})' if how else ''} has NaN or Inf; its inputs were not read."
        if self.kind == "backward" and self.is_first:
            most = f", from gradients of at most {self.absmax:.4g}" if self.absmax >= 0 else ""
            return (
                f" In the backward pass, {self.place}{f' ({how})' if how else ''} made the NaN or Inf{most}."
                f"{trial_wording.cause(self.trial, self.dtype, self.exact)}"
            )
        inputs = "inputs" if self.kind == "forward" else "gradients"
        most = f", from {inputs} of at most {self.absmax:.4g}" if self.absmax > 0 else ""
        return f" The NaN or Inf originated in the {self.kind} pass of {self.place}{f' ({how})' if how else ''}{most}."

    @property
    def _what(self) -> str:
        """Returns 'NaN', 'Inf' or, if both or neither were counted, 'NaN or Inf'."""
        return "NaN or Inf" if bool(self.nans) == bool(self.infs) else "NaN" if self.nans else "Inf"

    @property
    def _outside(self) -> str:
        """Where an operand from outside the graph may come from."""
        if self.beyond < 0:
            return "a target, a mask or a detached result"
        return (
            f"{self.argument} has values of up to {self.beyond:.4g}, and a conversion to float16 makes those above"
            " 65504 infinite"
        )

    @property
    def argument(self) -> str:
        return f"the model's argument {self.input}" if self.input else "an input of the model"

    def _where(self) -> str:
        places = (("micro-batch", self.micro_batch), ("sample", self.sample))
        known = [f"{name} {at}" for name, at in places if at >= 0]
        others = f"; its finite values are at most {self.absmax:.4g}" if self.absmax >= 0 else ""
        return (f" ({', '.join(known)}, counted from 0)" if known else "") + others


def of_event(event: Event) -> NonfiniteOrigin:
    data = event.data
    return NonfiniteOrigin(
        step=event.step,
        first=max(0, event.step - max(0, _integer(data, "since", 0))),
        kind=_text(data, "kind"),
        module=_text(data, "module"),
        tensor=_text(data, "tensor"),
        input=_text(data, "input"),
        micro_batch=_integer(data, "micro_batch", -1),
        sample=_integer(data, "sample", -1),
        type=_text(data, "class"),
        op=_text(data, "op"),
        dtype=_text(data, "dtype"),
        absmax=_size(data.get("absmax")),
        nans=_integer(data, "nans", 0),
        infs=_integer(data, "infs", 0),
        buffer=data.get("buffer") is True,
        read=data.get("confidence") != "frontier",
        behind=_text(data, "behind"),
        caller=_text(data, "caller"),
        reason=_text(data, "reason"),
        call=_text(data, "call") or "backward()",
        line=_text(data, "line"),
        trial=_text(data, "trial"),
        exact=_size(data.get("exact")),
        reproducer=_text(data, "reproducer"),
        device=_text(data, "device") if data.get("trial") else "",
        beyond=_size(data.get("beyond_float16")),
    )


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    return value[:MAX_NAME_CHARS] if isinstance(value, str) else ""


def _integer(data: dict[str, Any], name: str, otherwise: int) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else otherwise


def _size(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else -1.0
