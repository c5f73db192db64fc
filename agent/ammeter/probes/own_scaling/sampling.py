"""Adds samples of gradients to a step, and records those that contain NaN or Inf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.own_scaling.own_skips import OwnSkips
from ammeter.probes.own_scaling.samples import DeviceSample, Returned, Sample, Samples, is_finite
from ammeter.probes.own_scaling.steps import BACKWARD, CLIP_VALUE, MAX_NORM, MAX_POINTS, STEP, Pass, Point, ScaledStep
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Sampling:
    """The samples of one run.

    Attributes:
        is_on_host: whether the last sampled gradients were on the host.
    """

    def __init__(self, session: ProbeContext, samples: Samples, skips: OwnSkips) -> None:
        self._session = session
        self._samples = samples
        self._skips = skips
        self.is_on_host = True

    def read_all(
        self, row: Row, step: ScaledStep, kind: str, number: float = 0, place: call_site.Place = call_site.NOWHERE
    ) -> None:
        """Samples the gradients of all optimizers at one point of a step."""
        watched = self._session.watched
        for optimizer in watched.optimizers if not watched.by_several_threads else ():
            sample = self.read(row, step, optimizer, kind, number, place)
            if kind == BACKWARD and sample is not None:
                self._check_overflow(optimizer, sample, step.passes[-1])

    def read(
        self,
        row: Row,
        step: ScaledStep,
        optimizer: torch.optim.Optimizer,
        kind: str,
        number: float,
        place: call_site.Place = call_site.NOWHERE,
        returned: Returned | None = None,
    ) -> Sample | None:
        """Samples the gradients of one optimizer, or those that torch.autograd.grad() has returned."""
        if len(step.points.get(id(optimizer), ())) > MAX_POINTS:
            return None
        if kind in (MAX_NORM, CLIP_VALUE, STEP) and row.raw.get("gradients_read", {}).get(id(optimizer)):
            step.note_reading(id(optimizer))
        sample = self._samples.read(optimizer, returned)
        if isinstance(sample, DeviceSample):
            row.wait_for(sample.transfer)
        step.add(id(optimizer), Point(kind, sample, number, place))
        return sample

    def _check_overflow(self, optimizer: torch.optim.Optimizer, sample: Sample, last: Pass) -> None:
        """Records that scaled gradients contain NaN or Inf, if the host knows it."""
        self.is_on_host = sample.on_host
        if not sample.on_host:
            return
        scale = 0.0 if last.loss is None else self._skips.scale_of(last.loss.parts)
        if self._session.own_scale.value or scale:
            self._skips.passed(optimizer, scale)
            if not is_finite(sample):
                self._skips.overflowed(optimizer)


def seed_of(row: Row, seed: Any) -> Transfer | None:
    """Returns the gradient that the caller of backward() gave, if it is one number."""
    if isinstance(seed, list | tuple):
        seed = seed[0] if len(seed) == 1 else None
    if not isinstance(seed, torch.Tensor) or seed.numel() != 1 or seed.is_complex():
        return None
    number = async_copy.of(seed)
    row.wait_for(number)
    return number


def has_hooks(outputs: Any) -> bool:
    """Whether a loss has a hook, which may change its gradient."""
    several = outputs if isinstance(outputs, list | tuple) else (outputs,)
    return any(bool(getattr(output, "_backward_hooks", None)) for output in several)
