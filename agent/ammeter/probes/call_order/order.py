"""Judges the order of scale, backward, unscale_, step, update and zero_grad at each optimizer step.

A mistake is reported when the affected gradients are about to be used. Gradients that are zeroed before do no harm.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.gradient_checks import GradientChecks, is_scaled_by_hand, unscales
from ammeter.probes.call_order.ledger import MAX_FIRST_FULL_CHECKS, Ledger, OptimizerGradients, empty
from ammeter.probes.call_order.marks import UNKNOWN, Mark, Marks, Origin, backward_arguments, dtypes, roots
from ammeter.probes.call_order.returned_gradients import ReturnedGradients
from ammeter.probes.call_order.usage_events import UsageEvents, is_check_due, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MAX_FLOAT16_NODES = 1024
"""Nodes behind a root that are searched for float16, a few times in a run."""


class Order:
    def __init__(self, session: ProbeContext, events: UsageEvents, ledger: Ledger, marks: Marks) -> None:
        self._session = session
        self._events = events
        self._ledger = ledger
        self._marks = marks
        self._checks = GradientChecks(session, events, ledger)
        self._returned = ReturnedGradients()
        self._updates: dict[int, int] = {}
        self._scaling = any(scaler.is_enabled() for scaler in session.watched.scalers)
        self._root: Mark | None = None
        self._unmarkable = False
        self._is_by_hand = False
        self._walks = 0
        self._close_checks = self._changes = 0
        self._last_change: dict[int, int] = {}
        """id of an optimizer -> last step in which the program changed its scaled gradients."""

    def after_scale(self, scaler: Any, outputs: Any) -> None:
        """Marks the outputs after scale() of an enabled scaler."""
        self._scaling = True
        mark = Mark(id(scaler), self._updates.get(id(scaler), 0), self._session.row.step)
        self._unmarkable = not self._marks.put(outputs, mark) or self._unmarkable

    def start(self) -> None:
        self._ledger.refresh()

    def reset(self) -> None:
        """Discards the state of all gradients, which is unknown after steps that were not followed."""
        self._returned.clear()
        self._ledger.refresh()
        for account in self._ledger.checkable():
            account.use("")
            account.seen = account.state()
            account.attempted = -1

    def before_backward(self, tensors: Any) -> None:
        """Checks the gradients before backward(); in doubt all of them.

        A change since the last check is a reset or a change by the program.
        """
        step = self._session.row.step
        everything = step < MAX_FIRST_FULL_CHECKS or not step & (step - 1)
        if self._scaling:
            self._root = self._marks.direct(tensors) if isinstance(tensors, torch.Tensor) else None
            everything = everything or (self._root is None and self._needs_close_check(tensors))
        else:
            self._walks += 1
        if everything:
            self._ledger.refresh()
        for account in self._ledger.checkable():
            now = account.state()
            if now != account.seen:
                account.use("")
                account.seen = now
            elif not empty(now):
                if self._session.closure.is_new_evaluation:
                    self._use_in_closure(account)
                if account.outcome and not account.stale:
                    self._checks.check_leftover(account)
            if account.attempted == step and not empty(now):
                self._checks.read_unscaled(account)
            if everything is not account.everything:
                account.sample(everything)

    def after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step, origin = self._session.row.step, None
        for account in self._ledger.checkable():
            now = account.state()
            if now == account.seen:
                continue
            if empty(now):  # the optimizer stepped inside backward()
                account.use("")
                account.seen = now
                continue
            origin = origin or self._origin_of(args, kwargs)
            account.add(origin.marks, now)
            if account.marks:
                self._checks.sample(account)
            if self._root is None or account.attempted == step:
                self._record_origin(account, origin, args, kwargs)
        self._returned.clear()

    def _origin_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Origin:
        """The origin of the backward() that has just ended."""
        if not self._scaling:
            return UNKNOWN
        if self._root is not None:
            return Origin((self._root,), False)
        return self._origin(*backward_arguments(args, kwargs))

    def _needs_close_check(self, tensors: Any) -> bool:
        """Whether to check a backward() closely, because its roots are not near a scale().

        Such calls may be a habit of the program, so the check becomes rarer with their number.
        """
        if all(self._marks.near(root) for root in roots(tensors)):
            return False
        self._close_checks += 1
        return is_check_due(self._close_checks)

    def before_grad(self, tensors: Any) -> None:
        """Notes whether the program itself has scaled the outputs of torch.autograd.grad, before it frees the graph."""
        self._is_by_hand = self._scaling and any(
            is_scaled_by_hand(root) for root in roots(tensors) if not self._marks.near(root)
        )

    def after_grad(self, tensors: Any, explicit: bool, inputs: Any, results: Any) -> None:
        """Stores the origin of gradients from torch.autograd.grad, which the program may assign itself."""
        inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        if self._scaling and isinstance(results, tuple) and isinstance(inputs, list | tuple):
            sampled = {id(parameter) for account in self._ledger.checkable() for parameter in account.parameters()}
            chosen = [result for at, result in zip(inputs, results, strict=False) if id(at) in sampled]
            if chosen:
                origin = self._origin(tensors, explicit)
                line = call_site.line() if origin.raw and not self._is_by_hand else ""
                unseen(lambda: self._returned.add(chosen, origin.marks, line), ())

    def before_scaler_use(self, scaler: Any, optimizer: Any) -> bool:
        """Judges the gradients before an enabled scaler unscales or steps this optimizer.

        Returns:
            Whether this is the first such call for the optimizer in this step.
        """
        account = self._ledger.of(optimizer) or self._ledger.of_wrapped(optimizer)
        if account is None or self._is_in_use(account, scaler, optimizer):
            return False
        account.scaler = weakref.ref(scaler)
        if self._accept_changes(account) and account.marks:
            self._changed_while_scaled(optimizer)
        if account.unscaled_line:
            self._checks.loss_not_scaled(account, scaler)
        if account.update_line:
            self._checks.update_before_use(account, scaler, self._updates.get(id(scaler), 0))
        self._use(account, "skipped")
        return True

    def _is_in_use(self, account: OptimizerGradients, scaler: Any, optimizer: Any) -> bool:
        """Whether the scaler or the optimizer has used these gradients in this step.

        Gradients of a backward() after update() are others, such as those of the second half of a step of SAM.
        """
        is_new = bool(account.marks) and not unscales(scaler, optimizer)
        return account.attempted == self._session.row.step and not is_new

    def _changed_while_scaled(self, optimizer: Any) -> None:
        """Reports a change of scaled gradients, and has their norms read if the step before had none."""
        step = self._session.row.step
        self._events.emit_once("usage.changed_while_scaled", optimizer=name_of(optimizer))
        if self._last_change.get(id(optimizer), -2) < step - 1:
            self._changes += 1
            if is_check_due(self._changes):
                self._session.governor.norm_schedule.gradients_changed(step)
        self._last_change[id(optimizer)] = step

    def before_unscale(self, optimizer: Any) -> None:
        """Notes a scaler that unscales an optimizer through an object that wraps it."""
        account = None if self._ledger.of(optimizer) else self._ledger.of_wrapped(optimizer)
        if account is not None:
            account.unscaled_by_wrapper = self._session.row.step

    def before_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        """Reports a step that unscales again, and a second one without update(), at which torch raises an error."""
        self._checks.unscaled_by_wrapper(self._ledger.of(optimizer), scaler)
        state = scaler._per_optimizer_states.get(id(optimizer))
        if state and state["stage"] is OptState.STEPPED and self._ledger.of(optimizer):
            self._events.emit_once("usage.step_not_updated", optimizer=name_of(optimizer), scale=scale_of(scaler))

    def before_step(self, optimizer: Any) -> None:
        """Judges the beginning of an optimizer's own step(), called by scaler or program."""
        account = self._ledger.of(optimizer)
        if account is None:
            return
        account.own = True
        if account.attempted == self._session.row.step and id(optimizer) in self._session.row.scaler_used:
            account.outcome = "applied"
            return
        edited = self._accept_changes(account)
        if id(optimizer) not in self._session.row.scaler_used:
            if not edited and not account.edited:
                self._checks.step_without_scaler(account)
            elif account.marks:
                self._checks.note_past_scaler(account)
        self._use(account, "applied")

    def after_step(self, optimizer: Any) -> int:
        """Records the end of an optimizer's own step().

        A backward() inside it, as in a closure, belongs to this step.

        Returns:
            The number of steps that the optimizer has made; 0 for one that is not watched.
        """
        account = self._ledger.of(optimizer)
        if account is None:
            return 0
        if account.stale and self._session.closure.optimizer == id(optimizer):
            self._checks.not_reset(account)
        account.use(account.outcome)
        account.seen = account.state()
        account.steps += 1
        return account.steps

    def stepped_past_scaler(self) -> bool:
        """Reports an optimizer without a step of the scaler, after update() has raised an error for lack of one."""
        return self._checks.stepped_past_scaler()

    def before_update(self, scaler: Any) -> None:
        self._updates[id(scaler)] = self._updates.get(id(scaler), 0) + 1
        for account in self._ledger.checkable():
            if account.marks and not account.update_line and any(mark.scaler == id(scaler) for mark in account.marks):
                account.record(update_line=call_site.line(), scale=async_copy.of(scaler._scale))

    def _accept_changes(self, account: OptimizerGradients) -> bool:
        """Checks the gradients just before they are used.

        Returns:
            Whether the program has changed them itself, other than by assigning results of torch.autograd.grad.
        """
        now = account.state()
        if now == account.seen:
            return False
        account.seen = now
        returned = unseen(lambda: self._returned.origin_of(account.parameters()), ())
        if empty(now) or returned is not None:
            account.use("")
        if returned is not None:
            account.marks.update(returned.marks)
            account.record(unscaled_line=returned.line)
        return returned is None or returned.is_changed

    def _use(self, account: OptimizerGradients, outcome: str) -> None:
        """Records that a step uses the gradients; reports used gradients without a reset."""
        if account.stale:
            self._checks.not_reset(account)
        account.use(outcome)
        account.attempted = self._session.row.step

    def _use_in_closure(self, account: OptimizerGradients) -> None:
        """Records that the optimizer has changed its weights since the last evaluation of its closure."""
        if self._session.closure.optimizer == id(account.optimizer()):
            if account.stale:
                self._checks.not_reset(account)
            account.use("applied")

    def _origin(self, tensors: Any, explicit: bool) -> Origin:
        tensor_roots = roots(tensors)
        marks = [self._marks.direct(root) for root in tensor_roots]
        if tensor_roots and all(marks):
            return Origin(tuple(mark for mark in marks if mark), False)
        if not self._scaling or self._unmarkable:
            return UNKNOWN
        origins = [self._marks.origin(root) for root in tensor_roots]
        raw = not explicit and any(origin.raw for origin in origins)
        return Origin(tuple(mark for origin in origins for mark in origin.marks), raw)

    def _record_origin(
        self, account: OptimizerGradients, origin: Origin, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if origin.raw and not account.unscaled_line:
            account.record(unscaled_line=call_site.line())
        if origin.marks and account.attempted == self._session.row.step:
            self._checks.added_to_unscaled(account)
        if self._scaling or not is_check_due(self._walks) or self._events.was_emitted("usage.fp16_without_scaler"):
            return
        if any(torch.float16 in dtypes(root, MAX_FLOAT16_NODES) for root in roots(backward_arguments(args, kwargs)[0])):
            account.record(float16_line=call_site.line())
