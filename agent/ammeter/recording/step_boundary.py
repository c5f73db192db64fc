"""Detects where one step ends and the next begins.

A step closes at scaler.update(). With several scalers, it closes when one that already updated is used again. Without a
scaler, or when each scaler that was used has updated, it closes at one of two points:

- an optimizer that stepped is used again (zero_grad, step);
- a training-mode forward, backward or scale is called after every optimizer has stepped. Several optimizers that
  alternate, as in a GAN, therefore form one step.

A program may skip a step by itself: it resets or changes gradients with NaN or Inf, or those of such a loss, and their
optimizer does not step.
Such a step closes at the next of these calls, or at update() of the GradScaler whose unscale_() found NaN or Inf.

Calls that an optimizer makes inside its own step() (L-BFGS and its closure) belong to that step. A step that runs none
of torch's hooks is found at the next of these calls, see the package unobserved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.recording import returned_losses
from ammeter.recording.own_scale import REPORTED, Reset
from ammeter.recording.unobserved.scaler import UnobservedScaler
from ammeter.torch_hooks import optimizer_steps, patch
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.hook_points import AtEnd
from ammeter.torch_hooks.targets import optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.session import Session

Guard = Callable[[Callable[..., None]], Callable[..., None]]


class Boundary:
    """Step boundary detection, attached around the probes.

    before_probes() selects the row that the probes write to; after_probes() closes it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows = session.rows
        self._watched = session.watched
        self._unobserved_steps = session.unobserved_steps
        self._unobserved_backward = session.unobserved_backward
        self._unobserved_scaler = UnobservedScaler(session)
        self._inside: int | None = None
        self._has_stepped = False
        self._used: set[int] = set()
        self._updated: set[int] = set()
        """_used: ids of the scalers that unscaled or stepped in this step. _updated: ids of those that updated."""

    def before_probes(self, guard: Guard) -> list[Any]:
        session = self._session
        scalers, optimizers = self._watched.scaler_kinds, self._watched.optimizer_kinds
        loading = patch.methods(optimizers, "load_state_dict", before=guard(self._loading))
        return loading + session.fast_path.pauses(
            [
                session.forward.subscribe(trains=guard(self._forward), evaluates=guard(self._evaluation)),
                patch.backward(before=guard(self._backward), after=guard(self._after_backward)),
                optimizer_steps.before(session.guard("boundary")(self._optimizer_steps)),
                optimizer_steps.after(guard(self._optimizer_stepped)),
                patch.function(torch.autograd, "grad", before=guard(self._grad)),
                *patch.methods(optimizers, "zero_grad", before=guard(self._zero_grad)),
                *patch.methods(scalers, "scale", before=guard(self._scale)),
                *patch.methods(scalers, "unscale_", before=guard(self._optimizer_call)),
                *patch.methods(scalers, "step", before=guard(self._step), after=guard(self._stepped)),
                *patch.methods(scalers, "update", before=guard(self._update)),
            ]
        )

    def after_probes(self, guard: Guard) -> list[Any]:
        kinds = self._watched.scaler_kinds
        return self._session.fast_path.pauses(patch.methods(kinds, "update", after=guard(self._after_update)))

    def at_end(self, guard: Guard) -> AtEnd:
        """Finds the last step of a run whose calls are not observed, when the subscriptions end."""
        return AtEnd(guard(self._end))

    def _end(self) -> None:
        self._find_unobserved()
        self._finds_update()

    def _forward(self, _: torch.nn.Module, __: tuple[Any, ...], ___: dict[str, Any]) -> None:
        self._find_unobserved()
        self._close_if_complete()
        self._rows.begin_step()

    def _evaluation(self, _: torch.nn.Module, __: tuple[Any, ...], ___: dict[str, Any]) -> None:
        """Writes waiting rows; an evaluation between two steps belongs to neither."""
        self._rows.write_due()

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_inner, losses = patch.inside_backward(), patch.outputs(args, kwargs)
        if not is_inner:
            self._unobserved_backward.begins()
            self._find_unobserved()
            if "scaled" not in self._session.row.raw and self._watched.scalers.may_have_any():
                self._unobserved_scaler.before_backward(losses)
        self._close_if_complete(losses)
        self._rows.begin_step()
        if self._inside is not None and not is_inner:
            self._session.closure.begin_backward()

    def _grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begins a step at the loss of a program that never calls backward()."""
        if self._session.losses.are_of_backward or patch.inside_backward():
            return
        loss = returned_losses.loss_of(args, kwargs, self._watched)
        if loss is not None:
            self._find_unobserved()
            self._close_if_complete(loss)
            self._rows.begin_step()
            if self._inside is not None:
                self._session.closure.begin_backward()

    def _after_backward(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        if patch.inside_backward():
            return
        self._unobserved_backward.ends()
        if self._inside is not None:
            self._session.closure.end_backward()
        elif self._unobserved_steps.is_needed:
            self._unobserved_steps.after_backward()

    def _find_unobserved(self, *, has_line: bool = False) -> None:
        """Finds steps of optimizers that run no hooks; most programs have none."""
        if self._unobserved_steps.is_needed and self._inside is None and not patch.inside_backward():
            self._unobserved_steps.find(has_line=has_line)

    def _admit(self, optimizer: Any) -> bool:
        """Returns whether an optimizer is watched; a new one is from its first use on, after the step of the others."""
        if self._session.newcomers.awaits(optimizer):
            self._close_if_complete()
        return self._session.newcomers.admit(optimizer)

    def _loading(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._admit(args[0])

    def _zero_grad(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._find_unobserved()
        self._admit(args[0])
        if id(args[0]) in self._session.row.stepped and (not self._awaits_more() or self._finds_update()):
            self._close()
        elif args[0] in self._watched.optimizers:
            self._close_if_skipped(Reset(optimizer=args[0]))

    def _close_if_complete(self, losses: Any = None) -> None:
        if self._awaits_more() and not self._finds_update():
            return
        if self._is_complete():
            self._close()
        else:
            self._close_if_skipped(Reset(losses=losses))

    def _is_complete(self) -> bool:
        """Whether all optimizers have stepped or were skipped."""
        attempted = self._session.row.stepped | self._session.row.skipped
        return bool(attempted) and attempted.issuperset(map(id, self._watched.optimizers))

    def _close_if_skipped(self, reset: Reset) -> None:
        """Closes a step that the program itself skips: it gives up gradients with NaN or Inf."""
        row, own = self._session.row, self._session.own_scale
        if row.scaler_used or self._inside is not None or patch.inside_backward():
            return
        attempted = row.stepped | row.skipped
        given_up = [optimizer for optimizer in own.given_up(reset) if id(optimizer) not in attempted]
        if given_up:
            self._skip([optimizer for optimizer in given_up if own.overflows(optimizer)])
            for optimizer in self._watched.optimizers:  # which may lose their gradients without a call that is observed
                if optimizer not in given_up and id(optimizer) not in attempted and own.overflows(optimizer):
                    self._session.skipped(optimizer)
            row.skipped |= set(map(id, given_up))
            if self._is_complete():
                self._close()

    def _skip(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Marks optimizers as skipped whose gradients with NaN or Inf still exist."""
        for optimizer in optimizers:
            self._session.row.skipped |= {id(optimizer)}
            self._session.skipped(optimizer)

    def _finds_update(self) -> bool:
        """Whether the step needs to stay open no more, because update() was called without a callback."""
        if self._used and self._inside is None and not self._used <= self._updated:
            self._unobserved_scaler.find_updates(self._used, self._updated)
        return not self._awaits_more()

    def _awaits_more(self) -> bool:
        """Whether the step must stay open: in an optimizer's step(), and until update() of every scaler used."""
        updated = self._used and self._used <= self._updated
        return self._inside is not None or bool(self._session.row.scaler_used and not updated)

    def _optimizer_steps(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        session, self._has_stepped = self._session, True
        if self._unobserved_steps.is_needed:
            self._unobserved_steps.observed(optimizer)
        if not self._admit(optimizer) or not session.trains_here():
            return
        closure = closure_in(args, kwargs)
        if closure is not None:  # a closure may call anything
            session.fast_path.disable()
        self._once(optimizer)
        self._inside = id(optimizer)
        if closure is not None:
            session.closure.begin(optimizer)
        elif "micro_batches" not in session.row.raw:
            self._unobserved_backward.stepping(optimizer)
        session.row.stepped |= {id(optimizer)}

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if self._inside == id(optimizer):
            self._inside = None
            self._session.closure.end()
        elif not self._has_stepped and optimizer in self._watched.optimizers and self._session.trains_here():
            self._session.row.stepped |= {id(optimizer)}  # watch() was called in its closure, as Lightning may do

    def _scale(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._find_unobserved()
        if args[0].is_enabled():
            self._watched.scales(args[0])
        if self._watched.owns(args[0]):
            self._close_if_updated(args[0])
            self._close_if_complete()
            self._rows.begin_step()

    def _optimizer_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, optimizer = args[0], optimizer_in(args, kwargs)
        self._finds_update()
        if self._admit(optimizer):
            self._watched.use(scaler, optimizer)
            self._close_if_updated(scaler)
            self._rows.begin_step()
            if scaler.is_enabled():
                self._session.row.scaler_used |= {id(optimizer)}
                self._used.add(id(scaler))

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = optimizer_in(args, kwargs)
        if self._admit(optimizer):
            self._once(optimizer)
            self._optimizer_call(args, kwargs)

    def _stepped(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        optimizer, row = optimizer_in(args, kwargs), self._session.row
        if optimizer not in self._watched.optimizers or not args[0].is_enabled():
            return
        self._find_unobserved(has_line=True)
        row.scaler_used |= {id(optimizer)}
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            row.fused |= {id(optimizer)}
        if id(optimizer) not in row.stepped:
            self._skip([optimizer])

    def _once(self, optimizer: torch.optim.Optimizer) -> None:
        """Closes the step if this optimizer has already stepped in it, unless a framework steps in parts."""
        row = self._session.row
        if id(optimizer) in row.stepped | row.skipped and REPORTED not in row.raw:
            self._close()
        self._rows.begin_step()
        if not self._watched.optimizers.at_most_one():
            attempts = self._session.row.raw.setdefault("attempts", [])
            if id(optimizer) not in attempts:
                attempts.append(id(optimizer))

    def _update(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        self._find_unobserved()
        self._unobserved_scaler.before_update(args[0])
        self._close_if_updated(args[0])
        row = self._session.row
        if not row.stepped and not row.skipped:  # the program may have omitted step() because of NaN or Inf
            unscaled = [optimizer for optimizer in self._watched.optimizers if id(optimizer) in row.scaler_used]
            self._skip([optimizer for optimizer in unscaled if self._watched.overflowed(optimizer)])

    def _close_if_updated(self, scaler: torch.amp.GradScaler) -> None:
        """Closes the step when a scaler that already updated is used again."""
        if id(scaler) in self._updated:
            self._close()

    def _after_update(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        scaler = args[0]
        if scaler not in self._watched.scalers:
            return
        self._updated.add(id(scaler))
        if self._watched.scalers.at_most_one():
            self._close()

    def _close(self) -> None:
        row, own = self._session.row, self._session.own_scale
        self._used.clear()
        self._updated.clear()
        if row.stepped and not row.scaler_used and not self._watched.optimizers.at_most_one():
            row.skipped |= set(map(id, own.given_up(Reset(closes=True))))
        if row.stepped or row.skipped:
            self._rows.close_step()
