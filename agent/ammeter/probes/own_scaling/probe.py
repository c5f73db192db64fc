"""Records the program's own loss scale, and samples the gradients between backward() and step()."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs

from ammeter.probes.own_scaling import graph
from ammeter.probes.own_scaling.half_gradients import HalfGradients
from ammeter.probes.own_scaling.judgement import Judgement
from ammeter.probes.own_scaling.own_skips import OwnSkips, has_nonfinite
from ammeter.probes.own_scaling.samples import Returned, Samples
from ammeter.probes.own_scaling.sampling import Sampling, has_hooks, seed_of
from ammeter.probes.own_scaling.steps import (
    BACKWARD,
    CLIP_VALUE,
    CLIPPED,
    MAX_NORM,
    RESUMED,
    STEP,
    Pass,
    ScaledStep,
    Use,
)
from ammeter.recording import returned_losses
from ammeter.recording.loss_shares import MIN_OWN_SCALE, factors, own_scale
from ammeter.recording.own_scale import REPORTED
from ammeter.tensors import async_copy
from ammeter.torch_hooks import call_site, optimizer_steps, patch
from ammeter.torch_hooks.clip_calls import CLIP_ENDS, clip_arguments, clip_function, older_clip_arguments
from ammeter.torch_hooks.clip_calls import CLIP_REPORTS_NORM as HAS_ARGUMENTS
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.hook_points import Group
from ammeter.torch_hooks.loss_graph import OPAQUE, summands

if TYPE_CHECKING:
    from ammeter.probes.gradients.reading import GradientReading
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.losses import BackwardLoss
    from ammeter.recording.row import Row

KEY, RETURNED = "own_scaling", "own_scaling_returned"

MAX_FIRST_STEPS = 12
MAX_UNPROVEN_STEPS = 64
"""Steps that are sampled at the beginning of a run; and in all, if the loss has a factor that may be a scale."""


class OwnScaling:
    """Samples the first steps; later ones only of a program that has a scaler of its own."""

    name = "own_scaling"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._own = session.own_scale
        self._samples = Samples()
        self._judgement = Judgement(self._own)
        self._half = HalfGradients()
        self._group = Group(())
        self._steps = self._returned_steps = 0
        self._is_candidate = False
        self._emitted: set[str] = set()
        self._skips = OwnSkips(session, self._samples)
        self._sampling = Sampling(session, self._samples, self._skips)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        by_norm, clipped = guard(self._clips_norm), guard(self._clipped)
        by_value = guard(self._clips_values)
        self._own.overflowed, self._own.given_up = self._skips.overflowed, self._skips.given_up
        self._own.overflows = has_nonfinite
        handles = [
            patch.backward(before=guard(self._before_backward), after=guard(self._after_backward)),
            patch.function(torch.autograd, "grad", before=guard(self._before_grad)),
            patch.function(*clip_function(), before=by_norm),
            *[patch.function(*function, after=clipped) for function in CLIP_ENDS],
            patch.function(torch.nn.utils.clip_grad, "clip_grad_value_", before=by_value, after=clipped),
            patch.function(torch.nn.utils, "clip_grad_value_", before=by_value, after=clipped),
            optimizer_steps.before(guard(self._stepping)),
            optimizer_steps.after(guard(self._stepped)),
        ]
        self._group = Group(handles)
        return [*handles, patch.function(torch.autograd, "grad", after=guard(self._after_grad))]

    def finish(self, row: Row) -> None:
        """Judges the step and records its scale. A program with a GradScaler has none of its own."""
        self._skips.finish(row)
        step: ScaledStep | None = row.raw.get(KEY)
        if row.scaler_used or row.raw.get("scaled") or row.raw.get(REPORTED):
            self._group.pause()
            return
        losses, returned = row.raw.get("losses", ()), row.raw.get(RETURNED, ())
        if returned:
            self._returned_steps += 1
            if scale := max([own_scale(parts) for parts in returned]):
                self._emit_scaler(row, scale)
        if step is not None:
            was_proven = self._own.value > 0
            self._judge(row, step)
            if self._own.value and not was_proven:
                self._session.fast_path.disable()  # it records no scale
        if losses:
            self._report_scaler(row, losses)
            if self._own.value:
                self._record_scale(row, losses)
        if step is not None and not self._own.value:
            self._steps += 1
            if self._steps >= (MAX_UNPROVEN_STEPS if self._is_candidate else MAX_FIRST_STEPS):
                self._group.pause()

    def _judge(self, row: Row, step: ScaledStep) -> None:
        uses = {} if self._judgement.is_usual(step) else dict(step.uses())
        optimizers = {id(optimizer): optimizer for optimizer in self._session.watched.optimizers}
        for key, use in uses.items():
            for event, data in self._judgement.judge(use, optimizers.get(key), step.graph):
                if event not in self._emitted:
                    self._emitted.add(event)
                    row.events.append((event, data))
                    if event == "usage.loss_not_scaled":
                        self._emit_scaler(row, data["scale"])
            if not self._own.value and self._half.found(use):
                row.events.append(("gradient.unscaled_half", {}))
        if step.is_unsampled():
            self._judgement.take_for_scaled(step)
        self._scale_readings(row, step, uses)

    def _scale_readings(self, row: Row, step: ScaledStep, uses: Mapping[int, Use]) -> None:
        """Records the scale of gradients that were read before the program divided them."""
        readings: Sequence[GradientReading] = row.raw.get("gradients", ())
        scales = [self._judgement.scale_when_read(use) for key, use in uses.items() if key not in step.read_early]
        if step.read_early:
            scales.append(self._judgement.scale_after_backward(step))
        if readings and (scale := max(scales, default=1.0)) != 1:
            row.raw["gradients"] = [structs.replace(reading, scale=async_copy.number(scale)) for reading in readings]

    def _report_scaler(self, row: Row, losses: Sequence[BackwardLoss]) -> None:
        """Reports a scaler of the program's own, which multiplies the loss before backward()."""
        scale = max(own_scale(loss.parts) for loss in losses) or self._own.value
        if scale:
            self._emit_scaler(row, scale)
        self._is_candidate = self._is_candidate or any(
            factor >= MIN_OWN_SCALE for loss in losses for factor in factors(loss.parts)
        )

    def _emit_scaler(self, row: Row, scale: float) -> None:
        if "scaler.seen" not in self._emitted:
            self._emitted.add("scaler.seen")
            row.events.append(("scaler.seen", {"enabled": True, "scale": scale, "own": True}))

    def _record_scale(self, row: Row, losses: Sequence[BackwardLoss]) -> None:
        before = self._own.value
        scales = [scale for loss in losses if (scale := self._own.factor(loss.parts))]
        if not scales:
            return
        self._own.value = after = scales[-1]
        row.scalars["scale"], row.scalars["found_inf"] = after, float(bool(row.skipped))
        if after != before:
            row.events.append(("scaler.backoff" if after < before else "scaler.growth", {"from": before, "to": after}))
            self._session.governor.norm_schedule.scale_changed(self._session.row.step)

    def _rests(self) -> bool:
        """Whether the open step is not sampled.

        Unproven scalers are sampled in followed steps, and so are gradients on a device. Gradients that another thread
        trains must not be read.
        """
        session = self._session
        if session.watched.by_several_threads:
            return True
        is_needed = session.follows or (self._own.value > 0 and self._sampling.is_on_host)
        return not is_needed or session.closure.optimizer is not None or patch.inside_backward()

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._rests():
            return
        row = self._session.row
        step = row.raw.get(KEY)
        if step is None:
            step = row.raw[KEY] = ScaledStep()
        elif step.passes:
            self._sampling.read_all(row, step, RESUMED)
        step.losses_before = len(row.raw.get("losses", ()))
        if self._judgement.wants_graph and step.graph is None:
            step.graph = graph.examine(patch.outputs(args, kwargs))

    def _before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the factors of a loss whose gradients the program receives from torch.autograd.grad()."""
        loss = args[0] if args else kwargs.get("outputs")
        if self._returned_steps >= MAX_FIRST_STEPS or self._rests() or not isinstance(loss, torch.Tensor):
            return
        if loss.numel() == 1:
            row, parts = self._session.row, summands(loss)
            row.raw.setdefault(RETURNED, []).append(parts)
            for constant in [constant for part in parts for constant in part.transfers()]:
                row.wait_for(constant)

    def _after_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
        """Records that a loss with a scale has given the program gradients that it assigns itself."""
        session = self._session
        losses = session.row.raw.get("losses", ())
        if not losses or session.losses.are_of_backward or session.closure.optimizer is not None:
            return
        loss = returned_losses.loss_of(args, kwargs, session.watched)
        if loss is None:
            return
        if not self._rests() and self._samples_returned():
            self._sample_returned(session.row, loss, losses[-1], returned_losses.gradients_in(args, kwargs, results))
        if loss.is_cpu and (scale := self._skips.scale_of(losses[-1].parts)):
            session.fast_path.disable()  # it detects no steps that the program skips
            for optimizer in session.watched.optimizers:
                self._skips.passed(optimizer, scale)

    def _sample_returned(self, row: Row, loss: torch.Tensor, noted: BackwardLoss, returned: Returned) -> None:
        """Samples gradients that torch.autograd.grad() has returned, as those after a backward()."""
        step = row.raw.setdefault(KEY, ScaledStep())
        if self._judgement.wants_graph and step.graph is None:
            step.graph = graph.examine(loss)
        is_opaque = any(part.kind == OPAQUE for part in noted.parts)
        step.passes.append(Pass(noted, None, call_site.place(), is_opaque, returned_losses.CALL))
        for optimizer in self._session.watched.optimizers:
            self._sampling.read(row, step, optimizer, BACKWARD, len(step.passes) - 1, returned=returned)

    def _samples_returned(self) -> bool:
        """Whether gradients of torch.autograd.grad() are sampled: in the first steps, and of a proven scaler."""
        return self._own.value > 0 or self._steps < (MAX_UNPROVEN_STEPS if self._is_candidate else MAX_FIRST_STEPS)

    def _after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        row = self._session.row
        step = row.raw.get(KEY)
        if step is None or self._rests():
            return
        losses = row.raw.get("losses", ())
        loss = losses[-1] if len(losses) > step.losses_before else None
        outputs, seed = patch.outputs(args, kwargs), args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        is_opaque = loss is None or any(part.kind == OPAQUE for part in loss.parts) or has_hooks(outputs)
        step.passes.append(Pass(loss, seed_of(row, seed), call_site.place(), is_opaque))
        self._sampling.read_all(row, step, BACKWARD, len(step.passes) - 1)

    def _clips_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        limit = clip_arguments(args, kwargs)[1] if HAS_ARGUMENTS else older_clip_arguments(args)[1]
        if limit == limit:
            self._clips(MAX_NORM, limit)

    def _clips_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._clips(CLIP_VALUE, float(args[1] if len(args) > 1 else kwargs["clip_value"]))

    def _clips(self, kind: str, limit: float) -> None:
        row = self._session.row
        step = row.raw.get(KEY)
        if step is not None and step.passes:
            self._sampling.read_all(row, step, kind, limit, call_site.place())

    def _clipped(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        row = self._session.row
        step = row.raw.get(KEY)
        if step is not None and step.passes:
            self._sampling.read_all(row, step, CLIPPED)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        row = self._session.row
        step = row.raw.get(KEY)
        if step is None or optimizer not in self._session.watched.optimizers:
            return
        if closure_in(args, kwargs) is None:
            by_hand = float(optimizer_steps.may_be_by_hand(optimizer))
            self._sampling.read(row, step, optimizer, STEP, by_hand, call_site.place())
            weights = None if self._own.value or not self._sampling.is_on_host else self._samples.weights(optimizer)
            if weights is not None:
                step.weights[id(optimizer)] = weights, None

    def _stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        """Samples the weights after the step of an optimizer whose gradients may be scaled."""
        step = self._session.row.raw.get(KEY)
        if step is not None and id(optimizer) in step.weights:
            step.weights[id(optimizer)] = step.weights[id(optimizer)][0], self._samples.weights(optimizer)
