"""Replaces float16 after overflows that no loss scale prevents, and returns to it later."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.guards.float32_module import Float32Module
from ammeter.torch_hooks.forward_calls import hookable, innermost
from ammeter.torch_hooks.targets import plain_name

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner, Update

MAX_SKIPS = 5
"""Skips in a row at scales that had worked, as in scale-collapse.

The last one tried 1/16 of such a scale.
"""

MAX_BAD_LOSSES = 2
"""Skips in a row with a non-finite loss.

It is computed before scaling, so no scale can be the cause.
"""

MAX_CALIBRATION_SKIPS = 24
"""Skips in a row for a scaler without a good step, as in scale-collapse."""

STEADY_STEPS = 200
"""Good steps before float16 is tried again, doubled after each failure."""

MAX_RETURNS = 3

WIDER_DTYPES = ("bfloat16", "float32")


class Precision:
    """Runs the model, or one module, in bfloat16 or float32 while no scale prevents overflows.

    The program enters `with run.autocast(...):` instead of torch.autocast(...). Both are the same while the guard is
    inactive; for one module no change is needed. The guard acts before the next forward pass, after the fifth skip in a
    row at scales that had worked, or the second with a non-finite loss. It returns to float16 after `steady` good
    steps, then after two and four times as many; after `returns` attempts it stays in the wider type. It needs a
    GradScaler to count skips. Non-finite running statistics (BatchNorm) are reset.

    module: a path of model.named_modules(). to: "bfloat16", if the device supports it, or "float32"; a single module
    always runs in float32. patience, steady, returns: as above. Raises ValueError for invalid arguments.
    """

    name = "precision"

    def __init__(
        self,
        *,
        module: str | None = None,
        to: str = "bfloat16",
        patience: int = MAX_SKIPS,
        steady: int = STEADY_STEPS,
        returns: int = MAX_RETURNS,
    ) -> None:
        if to not in WIDER_DTYPES:
            raise ValueError(f"to is {to!r}; use one of {', '.join(WIDER_DTYPES)}")
        for name, number, minimum in (("patience", patience, 1), ("steady", steady, 1), ("returns", returns, 0)):
            if number < minimum:
                raise ValueError(f"{name} is {number!r}; use a whole number of {minimum} or more")
        self.module, self.to = module, to
        self.patience, self.steady, self.returns = patience, steady, returns
        self._runner: GuardRunner | None = None

    def check(self, models: Sequence[torch.nn.Module]) -> None:
        """Checks that a model has the module. Raises ValueError otherwise."""
        if self.module is not None and self._find(models) is None:
            paths = [path for model in models for path, _ in innermost(model).named_modules() if path]
            raise ValueError(
                f"module is {self.module!r}, which the model does not have; use a path of model.named_modules(), such"
                f" as {paths[0] if paths else ''!r}"
            )

    def attach(self, runner: GuardRunner) -> None:
        self._runner = runner
        self._skips: weakref.WeakKeyDictionary[torch.amp.GradScaler, int] = weakref.WeakKeyDictionary()
        self._worked: weakref.WeakKeyDictionary[torch.amp.GradScaler, bool] = weakref.WeakKeyDictionary()
        self._bad_losses = 0
        self._fallback: str | None = None
        self._float32_module: Float32Module | None = None
        self._good_steps = self._returned = 0
        self._uses_autocast = self._reported_unable = False

    def remove(self) -> None:
        self._fallback = None
        if self._float32_module is not None:
            self._float32_module.remove()
            self._float32_module = None

    def autocast(self, device_type: str, dtype: torch.dtype | None, options: dict[str, Any]) -> torch.autocast:
        """Returns the context of run.autocast()."""
        runner, fallback = self._runner, None if self._runner is None else self._fallback
        self._uses_autocast = True
        requested = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        if runner is None or fallback is None or runner.is_off(self) or requested is not torch.float16:
            return torch.autocast(device_type, dtype, **options)
        if fallback == "float32":
            return torch.autocast(device_type, dtype, **{**options, "enabled": False})
        return torch.autocast(device_type, torch.bfloat16, **options)

    def after_update(self, update: Update) -> None:
        scaler, overflow = update.scaler, update.overflow
        skips = self._skips[scaler] = self._skips.get(scaler, 0) + 1 if overflow else 0
        loss_counts = update.bad_loss and self._runner is not None and self._runner.alone  # losses differ between ranks
        self._bad_losses = self._bad_losses + 1 if overflow and loss_counts else 0
        if not overflow:
            self._worked[scaler] = True
            self._count_good_step()
        elif self._must_fall_back(skips, self._worked.get(scaler, False)):
            self._good_steps = 0
            if self._fallback is None:
                self._fall_back(skips)

    def _must_fall_back(self, skips: int, worked: bool) -> bool:
        if not worked:
            return skips > MAX_CALIBRATION_SKIPS
        return skips >= self.patience or self._bad_losses >= MAX_BAD_LOSSES

    def _count_good_step(self) -> None:
        if self._fallback is None:
            return
        self._good_steps += 1
        if self._good_steps >= self.steady * 2**self._returned and self._returned < self.returns:
            self._return()

    def _fall_back(self, skips: int) -> None:
        obstacle = self._obstacle()
        reason = f"{skips} steps in a row were skipped: " + (
            "the loss itself is not finite" if self._bad_losses else "the scale decreased, and no scale prevents it"
        )
        if obstacle:
            if not self._reported_unable:
                self._reported_unable = True
                self._emit("unable", f"{reason}; {obstacle}", "float16", "float16")
            return
        self._good_steps = 0
        self._fallback = "float32" if self.module is not None or not _has_bfloat16(self._device()) else self.to
        if self.module is not None:
            module = self._find(self._models())
            assert module is not None
            self._float32_module = Float32Module(module)
        norms = _reset_running_statistics(self._models())
        note = f"; non-finite running statistics of {norms} modules were reset" if norms else ""
        self._emit("fell back", reason + note, "float16", self._fallback)

    def _return(self) -> None:
        fallback, good_steps = self._fallback, self._good_steps
        self.remove()
        self._returned += 1
        self._emit(
            "came back",
            f"{good_steps} good steps in a row; try {self._returned} of {self.returns}",
            fallback,
            "float16",
        )

    def _obstacle(self) -> str:
        """Returns the reason for which the guard cannot act, '' if it can."""
        if self.module is None:
            return "" if self._uses_autocast else "the program does not enter run.autocast()"
        module = self._find(self._models())
        if module is None or not any(
            module is module for model in self._models() for _, module in hookable(innermost(model))
        ):
            return f"{self.module} is part of a compiled graph of torch.compile"
        half = {parameter.dtype for parameter in module.parameters()} - {torch.float32, torch.float64}
        return f"the weights of {self.module} are in {half.pop()}" if half else ""

    def _emit(self, action: str, reason: str, before: str | None, after: str) -> None:
        assert self._runner is not None
        where = {"module": self.module} if self.module is not None else {}
        self._runner.emit(self, action, reason, **{"from": before, "to": after}, **where)

    def _models(self) -> list[torch.nn.Module]:
        assert self._runner is not None
        return [model for ref in self._runner.session.watched.models if (model := ref()) is not None]

    def _find(self, models: Sequence[torch.nn.Module]) -> torch.nn.Module | None:
        named = ((path, module) for model in models for path, module in innermost(model).named_modules())
        module: dict[str, torch.nn.Module] = {plain_name(path): module for path, module in named if path}
        return module.get(str(self.module))

    def _device(self) -> str:
        return next((parameter.device.type for model in self._models() for parameter in model.parameters()), "cpu")


def _reset_running_statistics(models: Sequence[torch.nn.Module]) -> int:
    """Resets non-finite running statistics of BatchNorm and returns the number of modules.

    A forward pass that overflows leaves NaN in running statistics even if its step is skipped. They would never be
    finite again, which makes evaluation useless.
    """
    nonfinite = [
        module
        for model in models
        for module in model.modules()
        if isinstance(module, torch.nn.modules.batchnorm._NormBase)
        and module.running_mean is not None
        and not _is_finite(module)
    ]
    for norm in nonfinite:
        norm.reset_running_stats()
    return len(nonfinite)


def _is_finite(norm: torch.nn.modules.batchnorm._NormBase) -> bool:
    statistics = (norm.running_mean, norm.running_var)
    return all(bool(torch.isfinite(statistic).all()) for statistic in statistics if statistic is not None)


def _has_bfloat16(device: str) -> bool:
    return device != "cuda" or torch.cuda.is_bf16_supported()
