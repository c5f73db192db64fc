"""Other methods that people use today to watch a training, all in one process.

A detector raises an alarm with a step and a message.
"""

from __future__ import annotations

import math
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import torch
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_pre_hook

NAN, LOSS, NORM, TORCH, ANOMALY = "nan", "loss", "norm", "torch", "anomaly"
DETECTORS = {
    NAN: "NaN or Inf check of the loss",
    LOSS: "loss above 3 x its running median",
    NORM: "gradient norm above 10 x its running median, or not finite 3 times in a row",
    TORCH: "torch's own warnings and errors",
    ANOMALY: "torch.autograd.detect_anomaly",
}

MAX_LOSS_RATIO, MAX_NORM_RATIO = 3.0, 10.0
MAX_NONFINITE_NORMS = 3
"""Consecutive norms that are not finite; one alone is normal when the loss scale overflows."""

MEDIAN_WINDOW, MEDIAN_MIN_VALUES = 100, 10
"""Number of earlier values in the running median, and the smallest number for which there is one."""

NAMING_MESSAGES: Mapping[str, Mapping[str, str]] = {
    NAN: {"nonfinite-loss": ""},
    NORM: {"gradient-spike": ""},
    TORCH: {"unsupported-op": "same dtype", "scheduler-ahead": "lr_scheduler.step()"},
}
"""Faults whose cause a detector names, and the words that its message then contains."""

CAUSE, PART = "cause", "part"


class Alarm(msgspec.Struct, frozen=True):
    """An alarm of one detector at a step."""

    detector: str
    step: int
    message: str = ""


class DetectorSet:
    """Replaces ammeter.watch() and its run. Alarms go to a file at once, because the run may be killed.

    anomaly: Only torch's anomaly mode is active.
    """

    def __init__(self, path: Path, *, anomaly: bool = False) -> None:
        self._file = path.open("wb", buffering=0)
        self._step = 0
        self._losses, self._norms = Median(), Median()
        self._nonfinite = 0
        self._clipped: list[float] = []
        self._stepped: list[float] = []
        self._anomaly = anomaly
        if anomaly:
            torch.autograd.set_detect_anomaly(True)
        else:
            self._record_norms()
        warnings.showwarning = self._on_warning

    def watch(self, *_: object, **__: object) -> DetectorSet:
        return self

    def log(self, **values: Any) -> None:
        if "loss" not in values:
            return
        loss = float(values["loss"])
        if not math.isfinite(loss):
            self._raise_alarm(NAN, f"loss is {loss}")
        if loss > MAX_LOSS_RATIO * self._losses.before(loss):
            self._raise_alarm(LOSS, f"loss is {loss:.4g}")
        if norms := self._clipped or self._stepped:
            self._check_norm(math.sqrt(sum(norm * norm for norm in norms)))
        self._clipped, self._stepped = [], []
        self._step += 1

    def _check_norm(self, norm: float) -> None:
        usual = self._norms.before(norm)
        self._nonfinite = 0 if math.isfinite(norm) else self._nonfinite + 1
        if self._nonfinite >= MAX_NONFINITE_NORMS or MAX_NORM_RATIO * usual < norm < math.inf:
            self._raise_alarm(NORM, f"gradient norm is {norm:.4g}, usually {usual:.4g}")

    def autocast(self, *args: Any, **kwargs: Any) -> torch.autocast:
        return torch.autocast(*args, **kwargs)

    def close(self) -> None: ...

    def runs(self, work: Callable[[], object]) -> None:
        """Runs the program; an error that ends it is an alarm of torch or of its anomaly mode."""
        try:
            work()
        except Exception:
            error = traceback.format_exc()
            self._raise_alarm(ANOMALY if self._anomaly and "returned nan values" in error else TORCH, error)
            raise

    def _on_warning(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        found = self._anomaly and "Error detected in" in str(message)
        self._raise_alarm(ANOMALY if found else TORCH, f"{category.__name__}: {message}")

    def _record_norms(self) -> None:
        """Records the norm that clip_grad_norm_ returns, or else the norm before the optimizer's step."""
        total = clip_grad._get_total_norm

        def clipped(*args: Any, **kwargs: Any) -> torch.Tensor:
            norm = total(*args, **kwargs)
            self._clipped.append(float(norm))
            return norm

        def stepping(optimizer: torch.optim.Optimizer, *_: object) -> None:
            found = [
                weight.grad for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None
            ]
            self._stepped.append(
                float(total([gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in found]))
            )

        clip_grad._get_total_norm = clipped
        register_optimizer_step_pre_hook(stepping)

    def _raise_alarm(self, detector: str, message: str) -> None:
        self._file.write(msgspec.json.encode(Alarm(detector, self._step, message)) + b"\n")


class Median:
    """Running median of the finite values before the present one; infinite while there are too few."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=MEDIAN_WINDOW)

    def before(self, value: float) -> float:
        found = median(self._values) if len(self._values) >= MEDIAN_MIN_VALUES else math.inf
        if math.isfinite(value):
            self._values.append(value)
        return found


def read_alarms(path: Path) -> list[Alarm]:
    """The alarms in a file, without a last line that is incomplete."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Alarm) for line in lines]


def new_alarms(detector: str, alarms: Sequence[Alarm], twin: Sequence[Alarm], onset: int) -> list[Alarm]:
    """A detector's alarms from the onset on, unless it has alarms in the twin as well."""
    found, in_twin = (
        [alarm for alarm in many if (alarm.detector, alarm.step >= onset) == (detector, True)]
        for many in (alarms, twin)
    )
    return [] if in_twin else found


def named_by(alarms: Sequence[Alarm], fault: str, code: Sequence[tuple[str, int, int]]) -> list[str]:
    """Returns CAUSE if a message names the cause, PART if a traceback passes through the broken lines."""
    found = set()
    for alarm in alarms:
        naming = NAMING_MESSAGES.get(alarm.detector, {}).get(fault)
        if naming is not None and naming in alarm.message:
            found.add(CAUSE)
        if alarm.detector in (TORCH, ANOMALY) and any(in_traceback(alarm.message, *part) for part in code):
            found.add(PART)
    return sorted(found)


def in_traceback(message: str, file: str, first: int, last: int) -> bool:
    """Whether a traceback passes through these lines of a file."""
    for line in message.splitlines():
        path, _, rest = line.strip().removeprefix('File "').partition('", line ')
        number = rest.partition(",")[0]
        if rest and Path(path).name == file and number.isdecimal() and first <= int(number) <= last:
            return True
    return False
