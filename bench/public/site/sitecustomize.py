"""Runs in each Python of a public program: records what is true of it, and plants a fault.

bench/public/runner.py puts this folder on PYTHONPATH. PUBLIC_TRUTH names the file of the record, PUBLIC_FAULT the fault
and its step, as in "nan-weight:20". Neither is set in a run that is only watched. The folder of bench/wild with the
digest of the weights is loaded from here, as a Python loads one sitecustomize only.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

WEIGHTS_SITE = Path(__file__).parents[2] / "wild" / "weights_site" / "sitecustomize.py"
SCALER = "torch.amp.grad_scaler"

KEPT: list[Any] = []
"""What has to live as long as the process."""

RATE_FACTOR = 1e4
"""By this factor a learning rate is far above any that a program trains with."""


class AfterImport:
    """A finder that prepares a module of torch when it has been imported.

    It stays until then: some libraries look for torch before they import it.
    """

    def __init__(self, name: str, prepare: Callable[[Any], None]) -> None:
        self.name, self.prepare = name, prepare

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        place = sys.meta_path.index(self)
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        loader: Any = spec.loader if spec else None
        execute = loader.exec_module

        def executed(module: Any) -> None:
            sys.meta_path.remove(self)
            execute(module)
            self.prepare(module)

        loader.exec_module = executed
        return spec


class Record:
    """What a program does, as its own calls of torch show it.

    Attributes:
        steps, skipped: Steps of optimizers, and those that a GradScaler skipped.
        losses: Line of the program -> its losses by step, without the loss scale.
        begun, closed: Line -> closed steps at its last loss, and their number: of the optimizer that stepped first.
        times: Time of each step of the optimizer that stepped first, in seconds.
        optimizers: Identities of the optimizers that stepped.
        dtypes: Dtypes of enabled autocast contexts.
        loss_dtypes: Dtypes of the losses, before they are scaled, and of log_softmax with a gradient.
        softmax_error: Largest error of the probabilities of a log_softmax in half precision: the root mean square of
            the difference from float32, over that of the probabilities.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.folder = file, os.getcwd()
        self.steps = self.attempts = self.scaled_steps = 0
        self.losses: dict[str, list[list[float]]] = {}
        self.begun: dict[str, int] = {}
        self.closed = 0
        self.is_by_hand = os.environ.get("PUBLIC_OPTIMIZERS") == "0"
        self.times: list[float] = []
        self.optimizers: list[int] = []
        self.dtypes: set[str] = set()
        self.loss_dtypes: set[str] = set()
        self.softmax_error = 0.0
        self.scaled: dict[int, float] = {}

    def stepped(self, optimizer: Any, _: Any, __: Any) -> None:
        self.steps += 1
        if id(optimizer) not in self.optimizers:
            self.optimizers.append(id(optimizer))
        if id(optimizer) == self.optimizers[0]:
            self.times.append(time.perf_counter())
            self.closed += 1

    def scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if hasattr(result, "numel") and result.numel() == 1:
                self.scaled[id(result)] = float(outputs.detach())
                self.loss_dtypes.add(_name(outputs.dtype))
            return result

        return scale

    def step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps
            result = original(scaler, *args, **kwargs)
            self.attempts, self.scaled_steps = self.attempts + 1, self.scaled_steps + self.steps - before
            self.closed += self.steps == before
            return result

        return step

    def backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [tensors] if hasattr(tensors, "numel") else list(tensors)
            if len(roots) == 1 and roots[0].numel() == 1:
                root = roots[0]
                loss = self.scaled.pop(id(root), None)
                if loss is None:
                    self.loss_dtypes.add(_name(root.dtype))
                self.add(self.line(), float(root.detach()) if loss is None else loss)
            return original(tensors, *args, **kwargs)

        return backward

    def add(self, line: str, loss: float) -> None:
        """Adds a loss to the open step; in a program that updates its weights itself, each is that of a step."""
        steps = self.losses.setdefault(line, [])
        if self.begun.get(line) != self.closed or self.is_by_hand:
            steps.append([])
        self.begun[line] = self.closed
        steps[-1].append(loss)

    def log_softmax(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log_softmax(scores: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scores, *args, **kwargs)
            if result.requires_grad and result.element_size() == 2:
                self.loss_dtypes.add(_name(result.dtype))
                exact = original(scores.detach().float(), *args, **kwargs).exp()
                error = (result.detach().exp().float() - exact).square().mean() / exact.square().mean()
                self.softmax_error = max(self.softmax_error, float(error.sqrt()))
            return result

        return log_softmax

    def line(self) -> str:
        """The innermost line of the program itself, '' if a library trains it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.folder):
                return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(context: Any) -> Any:
            if context._enabled:
                self.dtypes.add(_name(context.fast_dtype))
            return original(context)

        return enter

    def write(self) -> None:
        if self.losses:
            gaps = sorted(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))
            record = {
                "steps": self.steps,
                "skipped": self.attempts - self.scaled_steps,
                "optimizers": len(self.optimizers),
                "losses": self.losses,
                "step_seconds": gaps[len(gaps) // 2] if gaps else None,
                "dtypes": sorted(self.dtypes),
                "loss_dtypes": sorted(self.loss_dtypes),
                "softmax_error": self.softmax_error,
                "is_scaled": self.attempts > 0,
            }
            self.file.write_text(json.dumps(record))


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def declare_operators(torch: Any) -> None:
    """Lets torchvision be imported where its compiled operators cannot be loaded, as beside a torch without CUDA.

    Its import registers kernels for two of them. None of the programs calls one.
    """
    spec = find_spec("torchvision")
    compiled = Path(spec.origin).with_name("_C.so") if spec is not None and spec.origin else None
    if compiled is None or not compiled.exists():
        return
    try:
        ctypes.CDLL(str(compiled))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


def record(torch: Any) -> None:
    """Wraps the functions of torch that a training calls."""
    note = Record(Path(os.environ["PUBLIC_TRUTH"]))
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(note.stepped)
    torch.autograd.backward = note.backward(torch.autograd.backward)
    torch.amp.GradScaler.scale = note.scale(torch.amp.GradScaler.scale)
    torch.amp.GradScaler.step = note.step(torch.amp.GradScaler.step)
    torch.nn.functional.log_softmax = note.log_softmax(torch.nn.functional.log_softmax)
    torch.amp.autocast.__enter__ = note.enter(torch.amp.autocast.__enter__)
    atexit.register(note.write)


def plant(torch: Any) -> None:
    """Plants the fault of PUBLIC_FAULT."""
    name, _, number = os.environ["PUBLIC_FAULT"].partition(":")
    step, seen = int(number), [0]
    optimizers: Any = sys.modules["torch.optim.optimizer"]

    def nan_weight(optimizer: Any, _: Any, __: Any) -> None:
        seen[0] += 1
        if seen[0] == step:
            with torch.no_grad():
                optimizer.param_groups[-1]["params"][-1].view(-1)[0] = float("nan")

    def high_rate(optimizer: Any, _: Any, __: Any) -> None:
        seen[0] += 1
        if seen[0] >= step:
            for group in optimizer.param_groups:
                group["lr"] = group.setdefault("usual_lr", group["lr"]) * RATE_FACTOR

    def not_unscaled(_scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    def not_reset(_owner: Any, *_: Any, **__: Any) -> None:
        pass

    if name == "nan-weight":
        optimizers.register_optimizer_step_post_hook(nan_weight)
    elif name == "high-rate":
        optimizers.register_optimizer_step_pre_hook(high_rate)
    elif name == "no-reset":
        torch.optim.Optimizer.zero_grad = torch.nn.Module.zero_grad = not_reset
    elif name == "not-unscaled":
        torch.amp.GradScaler.step = not_unscaled
    else:
        raise ValueError(f"PUBLIC_FAULT is {name!r}; known are nan-weight, high-rate, no-reset, not-unscaled")


runpy.run_path(str(WEIGHTS_SITE))
sys.meta_path.insert(0, AfterImport("torch", declare_operators))
for _variable, _prepare in (("PUBLIC_TRUTH", record), ("PUBLIC_FAULT", plant)):
    if _variable in os.environ:
        sys.meta_path.insert(0, AfterImport("torch", _prepare))
