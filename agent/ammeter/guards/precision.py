"""Replaces float16 after overflows that no loss scale prevents, and returns to it later."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.guards.float32_module import Wide
from ammeter.torch_hooks.forward_calls import hookable, innermost
from ammeter.torch_hooks.targets import plain_name

if TYPE_CHECKING:
    from ammeter.guards.runner import GuardRunner, Update

PATIENCE = 5
"""Skips in a row at scales that had worked, as in scale-collapse.

The last one tried 1/16 of such a scale.
"""

BAD_LOSSES = 2
"""Skips in a row with a non-finite loss.

It is computed before scaling, so no scale can be the cause.
"""

CALIBRATION = 24
"""Skips in a row for a scaler without a good step, as in scale-collapse."""

STEADY = 200
"""Good steps before float16 is tried again, doubled after each failure."""

RETURNS = 3

WIDER = ("bfloat16", "float32")


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
        patience: int = PATIENCE,
        steady: int = STEADY,
        returns: int = RETURNS,
    ) -> None:
        if to not in WIDER:
            raise ValueError(f"to is {to!r}; use one of {', '.join(WIDER)}")
        for name, number, least in (("patience", patience, 1), ("steady", steady, 1), ("returns", returns, 0)):
            if number < least:
                raise ValueError(f"{name} is {number!r}; use a whole number of {least} or more")
        self.module, self.to = module, to
        self.patience, self.steady, self.returns = patience, steady, returns
        self._duty: GuardRunner | None = None

    def check(self, models: Sequence[torch.nn.Module]) -> None:
        """Checks that a model has the module. Raises ValueError otherwise."""
        if self.module is not None and self._find(models) is None:
            paths = [path for model in models for path, _ in innermost(model).named_modules() if path]
            raise ValueError(
                f"module is {self.module!r}, which the model has not; use a path of model.named_modules(), such as"
                f" {paths[0] if paths else ''!r}"
            )

    def attach(self, duty: GuardRunner) -> None:
        self._duty = duty
        self._skips: weakref.WeakKeyDictionary[torch.amp.GradScaler, int] = weakref.WeakKeyDictionary()
        self._worked: weakref.WeakKeyDictionary[torch.amp.GradScaler, bool] = weakref.WeakKeyDictionary()
        self._bad_losses = 0
        self._fallen: str | None = None
        self._wide: Wide | None = None
        self._good = self._returned = 0
        self._entered = self._unable = False

    def remove(self) -> None:
        self._fallen = None
        if self._wide is not None:
            self._wide.remove()
            self._wide = None

    def autocast(self, device_type: str, dtype: torch.dtype | None, options: dict[str, Any]) -> torch.autocast:
        """Returns the context of run.autocast()."""
        duty, fallen = self._duty, None if self._duty is None else self._fallen
        self._entered = True
        wanted = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        if duty is None or fallen is None or duty.is_off(self) or wanted is not torch.float16:
            return torch.autocast(device_type, dtype, **options)
        if fallen == "float32":
            return torch.autocast(device_type, dtype, **{**options, "enabled": False})
        return torch.autocast(device_type, torch.bfloat16, **options)

    def updated(self, update: Update) -> None:
        scaler, overflow = update.scaler, update.overflow
        skips = self._skips[scaler] = self._skips.get(scaler, 0) + 1 if overflow else 0
        told = update.bad_loss and self._duty is not None and self._duty.alone  # losses differ between ranks
        self._bad_losses = self._bad_losses + 1 if overflow and told else 0
        if not overflow:
            self._worked[scaler] = True
            self._is_good()
        elif self._is_enough(skips, self._worked.get(scaler, False)):
            self._good = 0
            if self._fallen is None:
                self._fall(skips)

    def _is_enough(self, skips: int, worked: bool) -> bool:
        if not worked:
            return skips > CALIBRATION
        return skips >= self.patience or self._bad_losses >= BAD_LOSSES

    def _is_good(self) -> None:
        if self._fallen is None:
            return
        self._good += 1
        if self._good >= self.steady * 2**self._returned and self._returned < self.returns:
            self._come_back()

    def _fall(self, skips: int) -> None:
        refused = self._refused()
        reason = f"{skips} steps in a row were skipped: " + (
            "the loss itself is not finite" if self._bad_losses else "the scale comes down and none helps"
        )
        if refused:
            if not self._unable:
                self._unable = True
                self._tell("unable", f"{reason}; {refused}", "float16", "float16")
            return
        self._good = 0
        self._fallen = "float32" if self.module is not None or not _has_bfloat16(self._device()) else self.to
        if self.module is not None:
            found = self._find(self._models())
            assert found is not None
            self._wide = Wide(found)
        begun = _begin_anew(self._models())
        anew = f"; running statistics of {begun} modules were not finite and begin anew" if begun else ""
        self._tell("fell back", reason + anew, "float16", self._fallen)

    def _come_back(self) -> None:
        fallen, good = self._fallen, self._good
        self.remove()
        self._returned += 1
        self._tell(
            "came back", f"{good} good steps in a row; try {self._returned} of {self.returns}", fallen, "float16"
        )

    def _refused(self) -> str:
        """Returns why the guard cannot act, or '' if it can."""
        if self.module is None:
            return "" if self._entered else "the program does not enter run.autocast()"
        found = self._find(self._models())
        if found is None or not any(
            module is found for model in self._models() for _, module in hookable(innermost(model))
        ):
            return f"{self.module} runs inside what torch.compile made"
        half = {parameter.dtype for parameter in found.parameters()} - {torch.float32, torch.float64}
        return f"the weights of {self.module} are in {half.pop()}" if half else ""

    def _tell(self, action: str, reason: str, before: str | None, after: str) -> None:
        assert self._duty is not None
        where = {"module": self.module} if self.module is not None else {}
        self._duty.tell(self, action, reason, **{"from": before, "to": after}, **where)

    def _models(self) -> list[torch.nn.Module]:
        assert self._duty is not None
        return [model for ref in self._duty.session.watched.models if (model := ref()) is not None]

    def _find(self, models: Sequence[torch.nn.Module]) -> torch.nn.Module | None:
        named = ((path, module) for model in models for path, module in innermost(model).named_modules())
        found: dict[str, torch.nn.Module] = {plain_name(path): module for path, module in named if path}
        return found.get(str(self.module))

    def _device(self) -> str:
        return next((parameter.device.type for model in self._models() for parameter in model.parameters()), "cpu")


def _begin_anew(models: Sequence[torch.nn.Module]) -> int:
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
