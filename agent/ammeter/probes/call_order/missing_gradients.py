"""Finds optimizers that step without a gradient, and the place at which the graph ends before their parameters.

torch skips parameters without a gradient, and raises no error unless a scaler checks the step. In the first steps, and
after a step without gradients, the probe notes where the model's output and the loss come from.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.dropped_gradients import CHECKS, DroppedGradients, numbers_of, parameters_of
from ammeter.probes.call_order.marks import nodes, roots
from ammeter.probes.call_order.usage_events import UsageEvents, is_power_of_two, name_of
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.closures import closure_in, version

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MIN_EMPTY_STEPS = 2
"""Steps in a row without a gradient, if no optimizer has any: a single one may follow a reset by the program."""

MIN_IDLE_STEPS = 8
"""The same while other parameters have gradients: parts that train in turn have some within fewer steps."""

MAX_NODES = 8192
"""Nodes behind a loss that are searched for parameters, in steps without gradients and in the first one."""

MAX_GRAD_CALLS = 64
"""Calls of torch.autograd.grad() whose graphs are searched in a program that never calls backward()."""

MAX_NAMED_TENSORS = 5
"""Tensors that an event names, so that it stays small."""


class Account:
    """The steps of one optimizer.

    Attributes:
        steps: steps so far.
        empty: steps in a row without a gradient.
        first: step of the run with the first of these.
        had_gradient: whether any step had a gradient.
        versions: versions and sampled numbers of the parameters at the first of the empty steps. A program that
            updates its weights through `.data` changes no version.
        replaced: whether the last search found replaced parameters.
    """

    __slots__ = ("empty", "first", "had_gradient", "replaced", "steps", "versions")

    def __init__(self) -> None:
        self.steps = self.empty = self.first = 0
        self.had_gradient = self.replaced = False
        self.versions: tuple[float, ...] = ()


class Missing:
    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._accounts: weakref.WeakKeyDictionary[torch.optim.Optimizer, Account] = weakref.WeakKeyDictionary()
        self._searches, self._grad_calls = True, 0
        self._key = f"ammeter.output.{id(self)}"
        self._forward_line = self._backward_line = ""
        self._has_output = self._output_has_graph = self._comes_from_output = False
        self._leaves: set[int] | None = None
        self._dropped = DroppedGradients()

    def attach(self, guard: Any) -> list[Any]:
        return self._session.fast_path.pauses(
            [
                self._session.forward.subscribe(after=guard(self._after_forward)),
                patch.backward(before=guard(self._before_backward)),
                patch.function(torch.autograd, "grad", before=guard(self._before_grad)),
                *self._dropped.attach(guard),
            ]
        )

    def before_scaler_step(self, optimizer: Any) -> None:
        """Judges a step of an enabled scaler, which raises an error if no gradient exists."""
        if optimizer in self._session.watched.optimizers and not _has_gradient(optimizer):
            self._empty_step(optimizer, raises=True)

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Judges the gradients before an optimizer's own step()."""
        if closure_in(args, kwargs) is None:
            self._judge(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Judges the gradients that the closure of a step() has left."""
        if closure_in(args, kwargs) is not None:
            self._judge(optimizer)

    def _judge(self, optimizer: torch.optim.Optimizer) -> None:
        watched = self._session.watched
        if optimizer not in watched.optimizers or watched.by_several_threads:
            return
        if not _has_gradient(optimizer):
            self._empty_step(optimizer, raises=False)
            return
        account = self._of(optimizer)
        account.steps += 1
        account.empty, account.had_gradient = 0, True
        self._searches = False
        for function, line, keys in self._dropped.after_step(optimizer, account.steps):
            trained = [parameter for parameter in _trained(optimizer) if id(parameter) in keys]
            self._report(optimizer, "dropped", line, trained=trained, function=function)
        if account.steps in CHECKS or (account.steps > CHECKS[-1] and is_power_of_two(account.steps)):
            unseen(lambda: self._search_replaced(optimizer, account), ())

    def raised(self, line: str) -> None:
        """Reports an error of backward() on a loss without a graph."""
        reason = "no-graph-of-output" if self._has_output and not self._output_has_graph else "no-graph"
        line = self._forward_line if reason == "no-graph-of-output" else line
        self._report(next(iter(self._session.watched.optimizers), None), reason, line, raises=True)

    def checks_missing(self, line: str) -> None:
        """Reports GradScaler's error on an optimizer without gradients, if the step itself was not seen."""
        optimizers = [*self._session.watched.optimizers]
        empty = next((optimizer for optimizer in optimizers if not _has_gradient(optimizer)), None)
        is_now = empty is not None and self.has_gradients() and self._of(empty).had_gradient
        self._report(empty or next(iter(optimizers), None), "not-now" if is_now else "", line, raises=True)

    def has_gradients(self) -> bool:
        """Whether any watched optimizer has a gradient now."""
        return any(_has_gradient(optimizer) for optimizer in self._session.watched.optimizers)

    def _of(self, optimizer: torch.optim.Optimizer) -> Account:
        account = self._accounts.get(optimizer)
        if account is None:
            account = self._accounts[optimizer] = Account()
        return account

    def _after_forward(self, model: torch.nn.Module, _: Any, __: Any, output: Any) -> None:
        """Marks the graph of the model's output."""
        if not self._searches or not model.training or output is patch.RAISED:
            return
        tensors = [tensor for tensor in _tensors(output) if tensor.is_floating_point()]
        self._has_output, self._output_has_graph = bool(tensors), False
        self._forward_line = call_site.line()
        for tensor in tensors:
            node: Any = unseen(lambda: tensor.grad_fn, (tensor,))  # noqa: B023 - called at once
            if node is not None:
                node.metadata[self._key] = True
                self._output_has_graph = True

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the parameters that the loss depends on."""
        if self._searches and not patch.inside_backward():
            self._backward_line = call_site.line()
            unseen(lambda: self._search_graph(roots(patch.outputs(args, kwargs))), ())

    def _before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes them in a program that never calls backward() and assigns the gradients itself."""
        if self._searches and self._grad_calls < MAX_GRAD_CALLS and not self._session.losses.are_of_backward:
            self._grad_calls += 1
            self._before_backward((args[0] if args else kwargs.get("outputs"),), {})

    def _search_graph(self, losses: list[torch.Tensor]) -> None:
        leaves: set[int] = set()
        self._comes_from_output, count = False, 0
        for loss in losses:
            if loss.grad_fn is None:
                leaves.add(id(loss))
                continue
            for node in nodes(loss.grad_fn, MAX_NODES):
                count += 1
                self._comes_from_output = self._comes_from_output or self._key in node.metadata
                variable = getattr(node, "variable", None)
                if isinstance(variable, torch.Tensor):
                    leaves.add(id(variable))
        self._leaves = leaves if count < MAX_NODES else None

    def _empty_step(self, optimizer: torch.optim.Optimizer, *, raises: bool) -> None:
        account = self._of(optimizer)
        trained = list(_trained(optimizer)) or list(parameters_of(optimizer))
        if not trained or self._backward_line == "":
            self._searches = True  # nothing has run backward yet, so that no gradient can exist
            return
        versions = (*map(version, trained), *unseen(lambda: numbers_of((trained[0], trained[-1])), ()))
        if not account.empty or versions != account.versions:  # an optimizer of the program may need no gradients
            account.empty, account.first, account.versions = 0, self._session.row.step, versions
        account.empty += 1
        others = any(_has_gradient(other) for other in self._session.watched.optimizers if other is not optimizer)
        if others and account.had_gradient:
            return
        self._searches = True
        if not raises and account.empty < MIN_EMPTY_STEPS:
            return
        reason, line = unseen(lambda: self._reason(trained), ())
        needed = MIN_IDLE_STEPS if others or reason in ("unused", "") else MIN_EMPTY_STEPS
        if raises or (account.empty >= needed and (not others or reason == "other-parameters")):
            self._report(optimizer, reason, line, raises=raises, trained=trained, first=account.first)

    def _reason(self, trained: list[torch.Tensor]) -> tuple[str, str]:
        """Returns why these parameters have no gradient, and the line where the graph ends."""
        own, model = set(map(id, trained)), {id(parameter) for _, parameter in self._of_models()}
        leaves = self._leaves
        if not own & model and (model or (leaves and not leaves & self._owned())):
            return "other-parameters", ""
        if not any(parameter.requires_grad for parameter in trained):
            return "frozen", ""
        if leaves is None or not model:
            return "", ""
        if leaves & own:
            return "reset", ""
        if leaves & model:
            return "unused", self._backward_line
        if self._has_output and not self._output_has_graph:
            return "no-graph-of-output", self._forward_line
        if self._has_output and not self._comes_from_output:
            return "cut", self._backward_line
        return "", self._backward_line

    def _search_replaced(self, optimizer: torch.optim.Optimizer, account: Account) -> None:
        """Searches parameters that have no gradient and are not the model's, whose successors no optimizer has."""
        model = dict(self._of_models())
        present = set(map(id, model.values()))
        stale = [
            parameter for parameter in _trained(optimizer) if id(parameter) not in present and parameter.grad is None
        ]
        owned = self._owned()
        names = [
            name
            for name, parameter in model.items()
            if id(parameter) not in owned and parameter.requires_grad and parameter.grad is not None
        ]
        found = bool(stale and names)
        if found and account.replaced:
            self._report(optimizer, "replaced", "", trained=stale, names=names, first=self._session.row.step)
        account.replaced = found

    def _owned(self) -> set[int]:
        """Returns the ids of the parameters of all watched optimizers."""
        return {id(parameter) for other in self._session.watched.optimizers for parameter in parameters_of(other)}

    def _of_models(self) -> Iterator[tuple[str, torch.Tensor]]:
        for ref in self._session.watched.models:
            model = ref()
            if model is not None:
                yield from model.named_parameters()

    def _report(
        self,
        optimizer: torch.optim.Optimizer | None,
        reason: str,
        line: str,
        *,
        raises: bool = False,
        trained: Iterable[torch.Tensor] = (),
        names: Iterable[str] = (),
        first: int | None = None,
        function: str = "",
    ) -> None:
        more: dict[str, Any] = {"function": function} if function else {}
        trained = list(trained)
        own, watched = {id(parameter) for parameter in trained}, self._session.watched
        known = [watched.tensors[index].name for index, tensor in watched.alive() if id(tensor) in own]
        self._events.emit_once(
            "usage.no_gradients",
            line=line,
            optimizer=name_of(optimizer) if optimizer is not None else "",
            reason=reason,
            count=len(trained),
            tensors=(list(names) or known)[:MAX_NAMED_TENSORS],
            raises=raises,
            first_step=self._session.row.step if first is None else first,
            **more,
        )


def _has_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for parameter in parameters_of(optimizer))


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for parameter in parameters_of(optimizer) if parameter.requires_grad)


def _tensors(output: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested lists, tuples and dictionaries."""
    if isinstance(output, torch.Tensor):
        yield output
    elif depth and isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part, depth - 1)
