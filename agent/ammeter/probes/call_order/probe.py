"""Observes the program's calls and passes each one to the checks that need it."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.clipping import Clipping
from ammeter.probes.call_order.dtypes.loss_in_half import LossInHalf
from ammeter.probes.call_order.dtypes.precision import Precision
from ammeter.probes.call_order.dtypes.requested import Requested
from ammeter.probes.call_order.early_updates import EarlyUpdates, SecondSteps
from ammeter.probes.call_order.ledger import Ledger
from ammeter.probes.call_order.marks import Marks, has_gradient
from ammeter.probes.call_order.missing_gradients import Missing
from ammeter.probes.call_order.order import Order
from ammeter.probes.call_order.outcomes import Outcomes
from ammeter.probes.call_order.raised import Raised
from ammeter.probes.call_order.scalers import Scalers
from ammeter.probes.call_order.usage_events import UsageEvents, is_power_of_two
from ammeter.torch_hooks import optimizer_steps, patch
from ammeter.torch_hooks.targets import optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Usage:
    name = "usage"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._events = UsageEvents(session)
        self._ledger = ledger = Ledger(session.watched)
        marks = Marks()
        self._order = Order(session, self._events, ledger, marks)
        self._clipping = Clipping(session, self._events, ledger)
        self._early_updates = EarlyUpdates(session, self._events)
        self._second_steps = SecondSteps(session, self._events)
        self._scalers = Scalers(session, self._events)
        self._precision = Precision(session, self._events)
        self._outcomes = Outcomes(session, self._events)
        self._requested = Requested(session, self._events)
        self._loss_in_half = LossInHalf(session, self._events)
        self._missing = Missing(session, self._events)
        self._raised = Raised(session, self._events, self._missing, self._order)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        scalers, optimizers = self._session.watched.scaler_kinds, self._session.watched.optimizer_kinds
        guard(self._scalers.start)()
        guard(self._order.start)()
        return [
            *self._session.while_following(
                [
                    *patch.methods(scalers, "scale", after=guard(self._after_scale)),
                    patch.backward(before=self._session.guard(self.name)(self._any_thread)),
                    patch.backward(before=guard(self._before_backward), after=guard(self._after_backward)),
                    patch.function(
                        torch.autograd, "grad", before=guard(self._before_grad), after=guard(self._after_grad)
                    ),
                    *patch.methods(scalers, "unscale_", before=guard(self._before_unscale)),
                    *patch.methods(scalers, "step", before=guard(self._before_scaler_step)),
                    *patch.methods(scalers, "update", before=guard(self._before_update)),
                    optimizer_steps.before(guard(self._before_step)),
                    optimizer_steps.after(guard(self._after_step)),
                ]
            ),
            *patch.methods(scalers, "load_state_dict", after=guard(self._scalers.restored)),
            *patch.methods(optimizers, "load_state_dict", after=guard(self._scalers.resumed)),
            *self._early_updates.attach(guard),
            *self._second_steps.attach(guard),
            *self._clipping.attach(guard),
            *self._outcomes.attach(guard),
            *self._requested.attach(guard),
            *self._loss_in_half.attach(guard),
            *self._missing.attach(guard),
            *self._session.fast_path.pauses(
                [
                    *patch.methods(scalers, "step", before=guard(self._scaler_steps)),
                    optimizer_steps.before(guard(self._missing.before_step)),
                    optimizer_steps.after(guard(self._missing.after_step)),
                ]
            ),
            *self._raised.attach(guard),
        ]

    def reset(self) -> None:
        """Discards the outdated state of the gradients when calls are followed again."""
        self._order.reset()

    def count_fast_steps(self, first: int, count: int) -> None:
        self._outcomes.count_fast_steps(first, count)

    def finish(self, row: Row) -> None:
        self._events.finish(row)
        self._scalers.finish(row)
        self._outcomes.finish(row)

    def _after_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        scaler = args[0]
        if scaler in self._session.watched.scalers:
            self._ledger.set_training_thread()
        if self._session.follows and scaler.is_enabled():
            self._order.after_scale(scaler, result)
        self._scalers.after_scale(scaler, result)
        self._requested.after_scale(scaler, result)
        self._loss_in_half.sample(args[1] if len(args) > 1 else kwargs.get("outputs"))

    def _any_thread(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records in any thread that several threads train.

        A thread must not read gradients that another thread trains.
        """
        if get_ident() != self._session.thread:
            self._session.watched.by_several_threads = True

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.is_other_thread():
            self._order.before_backward(patch.outputs(args, kwargs))

    def _after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.is_other_thread():
            self._order.after_backward(args, kwargs)

    def _before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.is_other_thread():
            self._order.before_grad(args[0] if args else kwargs.get("outputs"))

    def _after_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.is_other_thread():
            outputs = args[0] if args else kwargs.get("outputs")
            inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
            explicit = has_gradient(args[2] if len(args) > 2 else kwargs.get("grad_outputs"))
            self._order.after_grad(outputs, explicit, inputs, results)

    def _before_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, optimizer = args[0], optimizer_in(args, kwargs)
        if scaler.is_enabled():
            self._order.before_unscale(optimizer)
            self._before_scaler_use(scaler, optimizer)

    def _before_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, optimizer = args[0], optimizer_in(args, kwargs)
        if scaler.is_enabled():
            self._order.before_scaler_step(scaler, optimizer)
            self._before_scaler_use(scaler, optimizer)

    def _scaler_steps(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args[0].is_enabled():
            self._missing.before_scaler_step(optimizer_in(args, kwargs))

    def _before_scaler_use(self, scaler: Any, optimizer: Any) -> None:
        if not self._session.follows:
            self._scalers.before_use(scaler, optimizer)
        elif self._order.before_scaler_use(scaler, optimizer):
            self._scalers.before_use(scaler, optimizer)
            self._precision.before_scaler_use(scaler, optimizer)

    def _before_update(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if self._session.follows and args[0].is_enabled():
            self._order.before_update(args[0])

    def _before_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if optimizer in self._session.watched.optimizers and not patch.inside_backward():
            self._ledger.set_training_thread()
        if self._session.follows:
            self._order.before_step(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        steps = self._order.after_step(optimizer) if self._session.follows else 0
        if steps and (is_power_of_two(steps) or self._precision.has_new_dtype(optimizer, steps)):
            self._precision.check(optimizer, first=steps == 1)
