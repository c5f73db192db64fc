"""What people watch a training with today, all of it at once.

Each eye says nothing, or at which steps it would have spoken up and in which words.
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
EYES = {
    NAN: "NaN or Inf check of the loss",
    LOSS: "loss above 3 x its running median",
    NORM: "gradient norm above 10 x its running median, or not finite 3 times in a row",
    TORCH: "torch's own warnings and errors",
    ANOMALY: "torch.autograd.detect_anomaly",
}

LOSS_TIMES, NORM_TIMES = 3.0, 10.0
IN_A_ROW = 3
"""Norms that are not finite: a loss scale that overflows once makes one, and is meant to."""

MEDIAN_OF, MEDIAN_FROM = 100, 10
"""The running median is that of so many values before, once there are so many."""

NAMES: Mapping[str, Mapping[str, str]] = {
    NAN: {"nonfinite-loss": ""},
    NORM: {"gradient-spike": ""},
    TORCH: {"unsupported-op": "same dtype", "scheduler-ahead": "lr_scheduler.step()"},
}
"""Faults whose cause an eye names, and a word that has to be in what it says."""


CAUSE, PART = "cause", "part"


class Said(msgspec.Struct, frozen=True):
    """An eye spoke up at a step."""

    eye: str
    step: int
    words: str = ""


class Others:
    """watch(), and what a run can be asked. What is said goes to a file at once: the run may be killed.

    anomaly: torch's anomaly mode looks, and only that.
    """

    def __init__(self, path: Path, *, anomaly: bool = False) -> None:
        self._file = path.open("wb", buffering=0)
        self._step = 0
        self._losses, self._norms = Median(), Median()
        self._bad = 0
        self._clipped: list[float] = []
        self._stepped: list[float] = []
        self._anomaly = anomaly
        if anomaly:
            torch.autograd.set_detect_anomaly(True)
        else:
            self._look_at_norms()
        warnings.showwarning = self._warned

    def watch(self, *_: object, **__: object) -> Others:
        return self

    def log(self, **values: Any) -> None:
        if "loss" not in values:
            return
        loss = float(values["loss"])
        if not math.isfinite(loss):
            self._say(NAN, f"loss is {loss}")
        if loss > LOSS_TIMES * self._losses.before(loss):
            self._say(LOSS, f"loss is {loss:.4g}")
        if norms := self._clipped or self._stepped:
            self._heard(math.sqrt(sum(each * each for each in norms)))
        self._clipped, self._stepped = [], []
        self._step += 1

    def _heard(self, norm: float) -> None:
        usual = self._norms.before(norm)
        self._bad = 0 if math.isfinite(norm) else self._bad + 1
        if self._bad >= IN_A_ROW or NORM_TIMES * usual < norm < math.inf:
            self._say(NORM, f"gradient norm is {norm:.4g}, usually {usual:.4g}")

    def autocast(self, *args: Any, **kwargs: Any) -> torch.autocast:
        return torch.autocast(*args, **kwargs)

    def close(self) -> None: ...

    def runs(self, work: Callable[[], object]) -> None:
        """Does the work; an error that ends it is torch's word, or that of its anomaly mode."""
        try:
            work()
        except Exception:
            said = traceback.format_exc()
            self._say(ANOMALY if self._anomaly and "returned nan values" in said else TORCH, said)
            raise

    def _warned(self, message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        found = self._anomaly and "Error detected in" in str(message)
        self._say(ANOMALY if found else TORCH, f"{category.__name__}: {message}")

    def _look_at_norms(self) -> None:
        """As a program logs what clip_grad_norm_ returns, else as it would compute it before the optimizer steps."""
        total = clip_grad._get_total_norm

        def clipped(*args: Any, **kwargs: Any) -> torch.Tensor:
            norm = total(*args, **kwargs)
            self._clipped.append(float(norm))
            return norm

        def stepping(optimizer: torch.optim.Optimizer, *_: object) -> None:
            found = [each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None]
            self._stepped.append(float(total([each.coalesce().values() if each.is_sparse else each for each in found])))

        clip_grad._get_total_norm = clipped
        register_optimizer_step_pre_hook(stepping)

    def _say(self, eye: str, words: str) -> None:
        self._file.write(msgspec.json.encode(Said(eye, self._step, words)) + b"\n")


class Median:
    """Of the finite values before the present one; infinite while there are too few."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=MEDIAN_OF)

    def before(self, value: float) -> float:
        found = median(self._values) if len(self._values) >= MEDIAN_FROM else math.inf
        if math.isfinite(value):
            self._values.append(value)
        return found


def said(path: Path) -> list[Said]:
    """What was said in such a file. A last line that the end of its process cut off is none."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Said) for line in lines]


def saw(eye: str, said: Sequence[Said], twin: Sequence[Said], onset: int) -> list[Said]:
    """What an eye said from a step on, where it had nothing to say of the same training without the fault."""
    found, of_twin = ([each for each in many if (each.eye, each.step >= onset) == (eye, True)] for many in (said, twin))
    return [] if of_twin else found


def names(said: Sequence[Said], fault: str, code: Sequence[tuple[str, int, int]]) -> list[str]:
    """What it names: CAUSE, where it has the word for what is wrong; PART, where a traceback passes through that."""
    found = set()
    for each in said:
        word = NAMES.get(each.eye, {}).get(fault)
        if word is not None and word in each.words:
            found.add(CAUSE)
        if each.eye in (TORCH, ANOMALY) and any(in_traceback(each.words, *part) for part in code):
            found.add(PART)
    return sorted(found)


def in_traceback(words: str, file: str, first: int, last: int) -> bool:
    """Whether a traceback passes through these lines of a file."""
    for line in words.splitlines():
        path, _, rest = line.strip().removeprefix('File "').partition('", line ')
        number = rest.partition(",")[0]
        if rest and Path(path).name == file and number.isdecimal() and first <= int(number) <= last:
            return True
    return False
