"""Reversible patches of torch functions and methods.

This is the only file that sets attributes on objects of other libraries. There is one tap per patched name, with any
number of subscribers; when the last one leaves, the original is restored. If another library has stored or wrapped
Ammeter's wrapper in the meantime, the wrapper remains there as a pass-through without effect.

torch.compile never traces an Ammeter callback, and finds as many graphs and graph breaks as without Ammeter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import autograd, compiler
from torch._C._dynamo import eval_frame
from torch._dynamo import convert_frame
from torch._dynamo.decorators import skip
from torch._dynamo.eval_frame import skip_code
from torch.compiler import disable, is_dynamo_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
Listen = Callable[[tuple[Any, ...], dict[str, Any]], After | None]
Step = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]

RAISED = object()
"""Result passed to an always-called `after` when the call raised."""


def method(
    kind: type, name: str, *, before: Before | None = None, after: After | None = None, always: bool = False
) -> Handle:
    """Calls back around a method, in whichever class of the MRO it is defined.

    An override that calls super() counts once.

    Args:
        before: receives (args, kwargs); args[0] is the object.
        after: receives (args, kwargs, result).
        always: if True, after is called with RAISED when the method raises; otherwise it is not called then.

    Raises:
        AttributeError: the name is unknown.
    """
    return _subscribe(_owner(kind, name), name, before, after, after if always else None)


def methods(
    kinds: Iterable[type], name: str, *, before: Before | None = None, after: After | None = None
) -> list[Handle]:
    """Calls back around this method of several classes, once per shared definition."""
    owners = dict.fromkeys(_owner(kind, name) for kind in kinds)
    return [_subscribe(owner, name, before, after) for owner in owners]


def function(module: Any, name: str, *, before: Before | None = None, after: After | None = None) -> Handle:
    """Calls back around a module-level function that its module calls by name.

    There are no callbacks inside a region that torch.compile traces: the function becomes part of the graph.
    """
    if not callable(getattr(module, name, None)):
        raise AttributeError(f"{module.__name__} has no function {name!r}")
    return _subscribe(module, name, before, after)


def backward(*, before: Before | None = None, after: After | None = None) -> Handle:
    """Calls back around torch.autograd.backward, which Tensor.backward calls, too.

    outputs() returns the tensors of a call. Nested calls, such as those of a checkpointed block, also cause callbacks:
    see inside_backward().
    """
    return function(autograd, "backward", before=before, after=after)


def outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the tensor or tensors that a call of backward() starts from."""
    return args[0] if args else kwargs.get("tensors")


def inside_backward() -> bool:
    """Whether a backward pass is running; calls made there belong to the outer pass."""
    return _graph_task() != -1


def called(kind: type, listen: Listen) -> Handle:
    """Calls back around calls of a class's instances.

    A class that inherits __call__ gets its own until the last subscriber leaves. Nothing is set on instances, so that a
    pickle or copy of one contains nothing of Ammeter. Traces of torch.compile and torch.export contain none either,
    but the functions that listen calls must themselves be safe from tracing.

    Args:
        listen: receives (args, kwargs), args[0] being the instance. Returns a function that is called with (args,
            kwargs, result) at the end of the call, with RAISED if it raised, or None.
    """
    key = (id(kind), "__call__")
    if key not in _taps:
        left = _inert.pop(key, None)
        _taps[key] = left if left and vars(kind).get("__call__") is left.wrapper else Calls(kind)
    skip_code(getattr(listen, "__func__", listen).__code__)
    return _taps[key].join((listen,))


def stepping(before: Step) -> Handle:
    """Calls back before any optimizer's own step(), with the arguments of torch's global pre-hooks."""
    return _BEFORE_STEPS.join((before,))


def stepped(after: Step) -> Handle:
    """Calls back after any optimizer's own step(), including fused optimizers that applied nothing."""
    return _AFTER_STEPS.join((after,))


def together(callbacks: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the callbacks in their order, with joinable neighbours joined into one.

    A joinable callback has `part` and `join`: join(parts) is a callback that does all of them.
    """
    groups: list[list[Any]] = []
    for each in callbacks:
        if groups and _can_join(groups[-1][-1], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    return tuple(group[0] if len(group) == 1 else group[0].join([each.part for each in group]) for group in groups)


def place(kind: type, name: str) -> Place:
    """Returns the Place of this method, as created by method().

    Raises:
        KeyError: the method has no subscribers.
    """
    return _taps[id(_owner(kind, name)), name]


def hear_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Calls back subscribers that joined during a call of backward(), before it does anything."""
    for before in _taps[id(autograd), "backward"].calls[0]:
        before(args, kwargs)


def attached() -> list[str]:
    """Returns the patched names, such as 'GradScaler.update', for tests and people."""
    return [f"{tap.owner.__name__}.{tap.name}" for tap in _taps.values()]


@contextmanager
def all_or_nothing() -> Iterator[None]:
    """Removes all subscriptions made inside if an error leaves the block."""
    made: list[Handle] = []
    _made.append(made)
    try:
        yield
    except BaseException:
        for handle in made:
            handle.remove()
        raise
    finally:
        _made.pop()


def uncompiled(call: Callable[..., None]) -> Callable[..., None]:
    """Returns the same call, which torch.compile never traces.

    Outside compiled regions the extra cost is negligible.
    """
    hidden: Callable[..., None] = disable(call)  # type: ignore[no-untyped-call]
    if compiling is None:
        return hidden
    asked = compiling

    def choose(*args: Any) -> None:
        (call if asked() is None else hidden)(*args)

    skip(choose)
    return choose


def _can_join(one: Any, other: Any) -> bool:
    return hasattr(one, "join") and getattr(other, "join", None) == one.join


class Place:
    """The subscribers to one event; a Group of them is paused and resumed together.

    Attributes:
        calls: for each part of a subscriber, such as before and after, the active callbacks.
        heard: whether any callback is active.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._groups: dict[int, Group] = {}
        self._resting: frozenset[Group] = frozenset()
        self._arranged: dict[frozenset[Group], tuple[tuple[Any, ...], ...]] = {}
        self.subscribers: tuple[tuple[Any, ...], ...] = ()
        self.arrange()

    def join(self, subscriber: tuple[Any, ...]) -> Handle:
        self.subscribers += (subscriber,)
        self._rearrange()
        return Handle(self, subscriber)

    def leave(self, subscriber: tuple[Any, ...]) -> None:
        self.subscribers = tuple(each for each in self.subscribers if each is not subscriber)
        self._groups.pop(id(subscriber), None)
        self._rearrange()

    def put(self, subscriber: tuple[Any, ...], group: Group) -> None:
        self._groups[id(subscriber)] = group
        self._rearrange()

    def rest(self, group: Group) -> None:
        self._resting |= {group}
        self.arrange()

    def wake(self, group: Group) -> None:
        self._resting -= {group}
        self.arrange()

    def _rearrange(self) -> None:
        self._resting &= set(self._groups.values())
        self._arranged.clear()
        self.arrange()

    def arrange(self) -> None:
        """Updates the active callbacks; the result is cached per set of paused groups."""
        calls = self._arranged.get(self._resting)
        if calls is None:
            awake = [each for each in self.subscribers if self._groups.get(id(each)) not in self._resting]
            calls = tuple(together(each[part] for each in awake if each[part]) for part in range(self._parts))
            self._arranged[self._resting] = calls
        self.calls = calls
        self.heard = any(calls)


class Handle:
    """One subscription. remove() ends it; a second call has no effect."""

    def __init__(self, place: Place, subscriber: tuple[Any, ...]) -> None:
        self.place = place
        self.subscriber = subscriber
        for made in _made:
            made.append(self)

    def remove(self) -> None:
        self.place.leave(self.subscriber)


class Group:
    """Subscriptions of any places that are paused and resumed together.

    A wrapper without active subscribers remains installed at negligible cost, so that nothing changes that
    torch.compile may have inspected.
    """

    def __init__(self, handles: Iterable[Any]) -> None:
        """Groups the handles that are patch.Handle; others are ignored."""
        taps = [each for each in handles if isinstance(each, Handle)]
        for each in taps:
            each.place.put(each.subscriber, self)
        self._places = list({id(each.place): each.place for each in taps}.values())

    def rest(self) -> None:
        for place in self._places:
            place.rest(self)

    def wake(self) -> None:
        for place in self._places:
            place.wake(self)


class _Tap(Place):
    """A patched function or method.

    Attributes:
        overridden: whether a method of this name is patched on another class, too, which may call this one through
            super() for the same object.
    """

    def __init__(self, owner: Any, name: str) -> None:
        super().__init__(parts=3)
        self.owner = owner
        self.name = name
        self.original: Callable[..., Any] = vars(owner)[name]
        self.overridden = False
        for other in [each for each in _taps.values() if each.name == name]:
            self.overridden = other.overridden = True
        self.wrapper = _wrap(self)
        setattr(owner, name, self.wrapper)

    def leave(self, subscriber: tuple[Any, ...]) -> None:
        super().leave(subscriber)
        if self.subscribers:
            return
        _taps.pop((id(self.owner), self.name), None)
        if vars(self.owner).get(self.name) is self.wrapper:
            self.restore()

    def restore(self) -> None:
        setattr(self.owner, self.name, self.original)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a pass-through that needs no ammeter, for classes pickled by value (cloudpickle)."""
        return SimpleNamespace, (), {"heard": False, "overridden": False, "subscribers": (), "name": self.name}


class _Steps(Place):
    """One global torch hook for all subscribers to optimizers' step()."""

    def __init__(self, register: Callable[[Any], Any]) -> None:
        super().__init__(parts=1)
        self._register = register
        self._hook: Any = None

    def join(self, subscriber: tuple[Any, ...]) -> Handle:
        handle = super().join(subscriber)
        if self._hook is None:
            self._hook = self._register(self._call)
        return handle

    def leave(self, subscriber: tuple[Any, ...]) -> None:
        super().leave(subscriber)
        if not self.subscribers and self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _call(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for call in self.calls[0]:
            call(optimizer, args, kwargs)


class Calls(_Tap):
    """A patched class's __call__, which may be inherited; each subscriber selects instances.

    Attributes:
        latest: instance id -> (args, kwargs) of its last call, for paused subscribers that may be resumed as a
            consequence of that call.
    """

    def __init__(self, owner: type) -> None:
        Place.__init__(self, parts=1)
        self.latest: dict[int, Any] = {}
        self.owner = owner
        self.name = "__call__"
        self.own = "__call__" in vars(owner)
        self.source = next(each for each in owner.__mro__ if "__call__" in vars(each))
        self.original = vars(self.source)["__call__"]
        self.frames = convert_frame.FRAME_COUNTER
        self.wrapper = _wrap_calls(self)
        setattr(owner, "__call__", self.wrapper)  # noqa: B010 - a class of theirs

    def restore(self) -> None:
        """Restores __call__, or keeps it as a pass-through if torch has compiled code since.

        Compiled code is valid for the class as it is; removing __call__ would cause a recompilation.
        """
        if self.own:
            super().restore()
        elif convert_frame.FRAME_COUNTER != self.frames:
            _inert[id(self.owner), self.name] = self
        else:
            delattr(self.owner, self.name)


def _wrap(tap: _Tap) -> Callable[..., Any]:
    original = tap.original
    name = tap.name if isinstance(tap.owner, type) else f"{tap.owner.__name__}.{tap.name}"

    traced = not _breaks_graphs(tap)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # While torch.compile traces, only the original is called, so that fullgraph=True remains possible. The compiler
        # knows the first of the two conditions and does not evaluate the other, which is is_compiling() in fewer calls.
        if (traced and (is_dynamo_compiling() or compiler._is_compiling_flag)) or not tap.heard:
            return original(*args, **kwargs)
        call = None
        if tap.overridden:
            call = (id(args[0]) if args else 0, name)
            if call in _running:
                return original(*args, **kwargs)
            _running.add(call)
        try:
            for before in tap.calls[0]:
                before(args, kwargs)
            result = original(*args, **kwargs)
        except BaseException:
            for always in tap.calls[2]:
                always(args, kwargs, RAISED)
            raise
        finally:
            if call:
                _running.discard(call)
        for after in tap.calls[1]:
            after(args, kwargs, result)
        return result

    if traced:  # not compiled as a frame of its own, which for torch.autograd.backward would add a graph break
        skip_code(wrapper.__code__)
    else:  # not traced itself; the functions that the original calls, such as a compiled optimizer, still are
        skip(wrapper)
    return functools.update_wrapper(wrapper, original)


def _wrap_calls(tap: Calls) -> Callable[..., Any]:
    own, source = tap.original if tap.own else None, tap.source

    def choose(*args: Any, **kwargs: Any) -> Any:
        original = own or source.__call__  # looked up at each call: torch.fx patches nn.Module's while it traces
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            return original(*args, **kwargs)
        if args and id(args[0]) in tap.latest:
            tap.latest[id(args[0])] = args, kwargs
        if not tap.heard:
            return original(*args, **kwargs)
        ends: tuple[After, ...] = ()
        for listen in tap.calls[0]:
            end = listen(args, kwargs)
            if end is not None:
                ends = (end, *ends)
        if not ends:
            return original(*args, **kwargs)
        result = RAISED
        try:
            result = original(*args, **kwargs)
        finally:
            for end in ends:
                end(args, kwargs, result)
        return result

    # Not compiled as a frame of its own. As part of the program's frame, it reduces to the original.
    skip_code(choose.__code__)
    return functools.update_wrapper(choose, tap.original)


def _breaks_graphs(tap: _Tap) -> bool:
    """Whether torch.compile ends a graph here anyway: it traces none of torch's tapped methods."""
    return not isinstance(tap.owner, ModuleType) and tap.original.__module__.partition(".")[0] == "torch"


def _owner(kind: type, name: str) -> type:
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is None:
        raise AttributeError(f"{kind.__name__} has no method {name!r}")
    return owner


def _subscribe(
    owner: Any, name: str, before: Before | None, after: After | None, always: After | None = None
) -> Handle:
    tap = _taps.get((id(owner), name))
    if tap is None:
        tap = _taps[(id(owner), name)] = _Tap(owner, name)
    return tap.join((before, after, always))


_graph_task: Callable[[], int] = torch._C._current_graph_task_id

compiling: Callable[[], Any] | None = getattr(eval_frame, "get_eval_frame_callback", None)
"""Returns the callback of torch.compile for new frames, None outside its regions. Older versions of torch lack it."""

_BEFORE_STEPS = _Steps(register_optimizer_step_pre_hook)
_AFTER_STEPS = _Steps(register_optimizer_step_post_hook)

_taps: dict[tuple[int, str], _Tap] = {}
_made: list[list[Handle]] = []
"""The subscriptions made in each open all_or_nothing block."""
_inert: dict[tuple[int, str], _Tap] = {}
_running: set[tuple[int, str]] = set()
"""Pairs of (object, method) on the stack: an override and the super() it calls count as one call."""
