"""Observes the program's calls and passes each one to the checks that need it."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.clipping import Clipping
from ammeter.probes.call_order.ledger import Ledger
from ammeter.probes.call_order.marks import Marks
from ammeter.probes.call_order.order import Order, any_of
from ammeter.probes.call_order.outcomes import Outcomes
from ammeter.probes.call_order.precision import Precision
from ammeter.probes.call_order.raised import Raised
from ammeter.probes.call_order.scalers import Scalers
from ammeter.probes.call_order.telling import Telling, is_power_of_two
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.targets import optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Usage:
    name = "usage"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._telling = Telling(session)
        self._ledger = ledger = Ledger(session.watched)
        marks = Marks()
        self._order = Order(session, self._telling, ledger, marks)
        self._clipping = Clipping(session, self._telling, ledger)
        self._scalers = Scalers(session, self._telling)
        self._precision = Precision(session, self._telling)
        self._outcomes = Outcomes(session, self._telling)
        self._raised = Raised(session, self._telling)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        scalers, optimizers = self._session.watched.scaler_kinds, self._session.watched.optimizer_kinds
        guard(self._scalers.begin)()
        guard(self._order.begin)()
        return [
            *self._session.while_following(
                [
                    *patch.methods(scalers, "scale", after=guard(self._scaled)),
                    patch.backward(before=self._session.guard(self.name)(self._anybody)),
                    patch.backward(before=guard(self._backward), after=guard(self._went_back)),
                    patch.function(torch.autograd, "grad", after=guard(self._took_gradients)),
                    *patch.methods(scalers, "unscale_", before=guard(self._asked)),
                    *patch.methods(scalers, "step", before=guard(self._asked_to_step)),
                    *patch.methods(scalers, "update", before=guard(self._updating)),
                    patch.stepping(guard(self._steps)),
                    patch.stepped(guard(self._stepped)),
                ]
            ),
            *patch.methods(scalers, "load_state_dict", after=guard(self._scalers.restored)),
            *patch.methods(optimizers, "load_state_dict", after=guard(self._scalers.resumed)),
            *self._clipping.attach(guard),
            *self._outcomes.attach(guard),
            *self._raised.attach(guard),
        ]

    def reset(self) -> None:
        """Discards the outdated state of the gradients when calls are followed again."""
        self._order.reset()

    def skip_steps(self, first: int, count: int) -> None:
        self._outcomes.skip_steps(first, count)

    def finish(self, row: Row) -> None:
        self._telling.finish(row)
        self._scalers.finish(row)
        self._outcomes.finish(row)

    def _scaled(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        scaler = args[0]
        if scaler in self._session.watched.scalers:
            self._ledger.trains_here()
        if self._session.follows and scaler.is_enabled():
            self._order.scaled(scaler, result)
        self._scalers.used(scaler, result)

    def _anybody(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records in any thread that several threads train.

        A thread must not read gradients that another thread trains.
        """
        if get_ident() != self._session.thread:
            self._session.watched.by_several_threads = True

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.elsewhere():
            self._order.backward_begins(patch.outputs(args, kwargs))

    def _went_back(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.elsewhere():
            self._order.backward_ended(args, kwargs)

    def _took_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any) -> None:
        if self._session.follows and not patch.inside_backward() and not self._ledger.elsewhere():
            given = args[0] if args else kwargs.get("outputs")
            inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
            explicit = any_of(args[2] if len(args) > 2 else kwargs.get("grad_outputs"))
            self._order.grad_ended(given, explicit, inputs, results)

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, optimizer = args[0], optimizer_in(args, kwargs)
        if scaler.is_enabled():
            self._first_asked(scaler, optimizer)

    def _asked_to_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, optimizer = args[0], optimizer_in(args, kwargs)
        if scaler.is_enabled():
            self._order.asked_to_step(scaler, optimizer)
            self._first_asked(scaler, optimizer)

    def _first_asked(self, scaler: Any, optimizer: Any) -> None:
        if not self._session.follows:
            self._scalers.asked(scaler, optimizer)
        elif self._order.asked(scaler, optimizer):
            self._scalers.asked(scaler, optimizer)
            self._precision.asked(scaler, optimizer)

    def _updating(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if self._session.follows and args[0].is_enabled():
            self._order.updating(args[0])

    def _steps(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if optimizer in self._session.watched.optimizers and not patch.inside_backward():
            self._ledger.trains_here()
        if self._session.follows:
            self._order.steps(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        steps = self._order.stepped(optimizer) if self._session.follows else 0
        if steps and is_power_of_two(steps):
            self._precision.look(optimizer, first=steps == 1)
