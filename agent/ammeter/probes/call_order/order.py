"""Judges the order of scale, backward, unscale_, step, update and zero_grad at each optimizer step.

A mistake is reported when the affected gradients are about to be used. Gradients that are zeroed before do no harm.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.judging import Judge
from ammeter.probes.call_order.ledger import ALL_AT_FIRST, Ledger, OptimizerGradients, empty
from ammeter.probes.call_order.loose import Loose
from ammeter.probes.call_order.marks import UNKNOWN, Mark, Marks, Origin, dtypes, roots
from ammeter.probes.call_order.telling import Telling, is_due, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

FAR_DOWN = 1024
"""Nodes behind a root that are searched for float16, a few times in a run."""


class Order:
    def __init__(self, session: ProbeContext, telling: Telling, ledger: Ledger, marks: Marks) -> None:
        self._session = session
        self._telling = telling
        self._ledger = ledger
        self._marks = marks
        self._judge = Judge(session, telling, ledger)
        self._loose = Loose()
        self._updates: dict[int, int] = {}
        self._scaling = any(scaler.is_enabled() for scaler in session.watched.scalers)
        self._root: Mark | None = None
        self._unmarkable = False
        self._walks = 0
        self._doubts = 0

    def scaled(self, scaler: Any, outputs: Any) -> None:
        """Marks the outputs after scale() of an enabled scaler."""
        self._scaling = True
        mark = Mark(id(scaler), self._updates.get(id(scaler), 0), self._session.row.step)
        self._unmarkable = not self._marks.put(outputs, mark) or self._unmarkable

    def begin(self) -> None:
        self._ledger.open()

    def reset(self) -> None:
        """Discards the state of all gradients, which is unknown after steps that were not followed."""
        self._loose.forget()
        self._ledger.open()
        for account in self._ledger.ours():
            account.use("")
            account.seen = account.now()
            account.attempted = -1

    def backward_begins(self, given: Any) -> None:
        """Checks the gradients before backward(); in doubt all of them.

        A change since the last check is a reset or a change by the program.
        """
        step = self._session.row.step
        everything = step < ALL_AT_FIRST or not step & (step - 1)
        if self._scaling:
            self._root = self._marks.direct(given) if isinstance(given, torch.Tensor) else None
            everything = everything or (self._root is None and self._is_doubtful(given))
        else:
            self._walks += 1
        if everything:
            self._ledger.open()
        for account in self._ledger.ours():
            now = account.now()
            if now != account.seen:
                account.use("")
                account.seen = now
            elif account.carried and not account.stale and not empty(now):
                self._judge.look_at_what_is_left(account)
            if everything is not account.everything:
                account.sample(everything)

    def backward_ended(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step, origin = self._session.row.step, None
        for account in self._ledger.ours():
            now = account.now()
            if now == account.seen:
                continue
            if empty(now):  # the optimizer stepped inside backward()
                account.use("")
                account.seen = now
                continue
            origin = origin or self._origin_of(args, kwargs)
            account.add(origin.marks, now)
            if self._root is None or account.attempted == step:
                self._note(account, origin, args, kwargs)
        self._loose.forget()

    def _origin_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Origin:
        """The origin of the backward() that has just ended."""
        if not self._scaling:
            return UNKNOWN
        return Origin((self._root,), False) if self._root is not None else self._origin(*_given(args, kwargs))

    def _is_doubtful(self, given: Any) -> bool:
        """Whether to check a backward() closely, because its roots are not near a scale().

        Such calls may be a habit of the program, so the check becomes rarer with their number.
        """
        if all(self._marks.near(root) for root in roots(given)):
            return False
        self._doubts += 1
        return is_due(self._doubts)

    def grad_ended(self, given: Any, explicit: bool, inputs: Any, results: Any) -> None:
        """Stores the origin of gradients from torch.autograd.grad, which the program may assign itself."""
        inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
        if self._scaling and isinstance(results, tuple) and isinstance(inputs, list | tuple):
            sampled = {id(parameter) for account in self._ledger.ours() for parameter in account.parameters()}
            chosen = [result for at, result in zip(inputs, results, strict=False) if id(at) in sampled]
            if chosen:
                origin = self._origin(given, explicit)
                line = call_site.line() if origin.raw else ""
                unseen(lambda: self._loose.keep(chosen, origin.marks, line), ())

    def asked(self, scaler: Any, optimizer: Any) -> bool:
        """Judges the gradients before an enabled scaler unscales or steps this optimizer.

        Returns:
            Whether this is the first such call for the optimizer in this step.
        """
        account = self._ledger.of(optimizer)
        if account is None or account.attempted == self._session.row.step:
            return False
        account.scaler = weakref.ref(scaler)
        self._take_in(account)
        if account.raw:
            self._judge.raw(account, scaler)
        if account.updated:
            self._judge.updates(account, scaler, self._updates.get(id(scaler), 0))
        self._use(account, "skipped")
        return True

    def asked_to_step(self, scaler: Any, optimizer: Any) -> None:
        """Reports a second scaler.step() without update(), at which torch raises an error."""
        state = scaler._per_optimizer_states.get(id(optimizer))
        if state and state["stage"] is OptState.STEPPED and self._ledger.of(optimizer):
            self._telling.once("usage.step_not_updated", optimizer=name_of(optimizer), scale=scale_of(scaler))

    def steps(self, optimizer: Any) -> None:
        """Judges the beginning of an optimizer's own step(), called by scaler or program."""
        account = self._ledger.of(optimizer)
        if account is None:
            return
        account.own = True
        if account.attempted == self._session.row.step and id(optimizer) in self._session.row.scaler_used:
            account.carried = "applied"
            return
        edited = self._take_in(account)
        if id(optimizer) not in self._session.row.scaler_used and not edited:
            self._judge.plain(account)
        self._use(account, "applied")

    def stepped(self, optimizer: Any) -> int:
        """Records the end of an optimizer's own step().

        A backward() inside it, as in a closure, belongs to this step.

        Returns:
            The number of steps that the optimizer has made; 0 for one that is not watched.
        """
        account = self._ledger.of(optimizer)
        if account is None:
            return 0
        account.use(account.carried)
        account.seen = account.now()
        account.steps += 1
        return account.steps

    def updating(self, scaler: Any) -> None:
        self._updates[id(scaler)] = self._updates.get(id(scaler), 0) + 1
        for account in self._ledger.ours():
            if account.marks and not account.updated and any(mark.scaler == id(scaler) for mark in account.marks):
                account.note(updated=call_site.line(), scale=async_copy.of(scaler._scale))

    def _take_in(self, account: OptimizerGradients) -> bool:
        """Checks the gradients just before they are used.

        Returns:
            Whether the program has changed them itself, other than by assigning results of torch.autograd.grad.
        """
        now = account.now()
        if now == account.seen:
            return False
        account.seen = now
        loose = unseen(lambda: self._loose.behind(account.parameters()), ())
        if empty(now) or loose is not None:
            account.use("")
        if loose is not None:
            account.marks.update(loose.marks)
            account.note(raw=loose.line)
        return loose is None

    def _use(self, account: OptimizerGradients, outcome: str) -> None:
        """Records that a step uses the gradients; reports used gradients without a reset."""
        if account.stale:
            self._judge.not_reset(account)
        account.use(outcome)
        account.attempted = self._session.row.step

    def _origin(self, given: Any, explicit: bool) -> Origin:
        found = roots(given)
        marks = [self._marks.direct(root) for root in found]
        if found and all(marks):
            return Origin(tuple(mark for mark in marks if mark), False)
        if not self._scaling or self._unmarkable:
            return UNKNOWN
        origins = [self._marks.origin(root) for root in found]
        raw = not explicit and any(origin.raw for origin in origins)
        return Origin(tuple(mark for origin in origins for mark in origin.marks), raw)

    def _note(self, account: OptimizerGradients, origin: Origin, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if origin.raw and not account.raw:
            account.note(raw=call_site.line())
        if origin.marks and account.attempted == self._session.row.step:
            self._judge.stage(account)
        if not self._scaling and is_due(self._walks) and not self._telling.told("usage.fp16_without_scaler"):
            self._look_for_float16(account, _given(args, kwargs)[0])

    def _look_for_float16(self, account: OptimizerGradients, given: Any) -> None:
        if any(torch.float16 in dtypes(root, FAR_DOWN) for root in roots(given)):
            account.note(float16=call_site.line())


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """(roots of a backward() call, whether the caller gave it gradients to start with)."""
    own = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    return args[0] if args else kwargs.get("tensors"), any_of(own)


def any_of(gradients: Any) -> bool:
    """Whether the caller of backward() gave it any gradient."""
    return (
        any(gradient is not None for gradient in gradients)
        if isinstance(gradients, list | tuple)
        else gradients is not None
    )
