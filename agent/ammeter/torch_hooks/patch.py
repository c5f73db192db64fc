"""Reversible patches of torch functions and methods.

This is the only file that sets attributes on objects of other libraries. Each patched name has one patch, with any
number of subscribers; when the last one leaves, the original is restored. If another library has stored or wrapped
Ammeter's wrapper in the meantime, the wrapper remains there as a pass-through without effect.

torch.compile never traces an Ammeter callback, and finds as many graphs and graph breaks as without Ammeter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import autograd, compiler
from torch.compiler import is_dynamo_compiling

from ammeter.torch_hooks.dynamo import frames_compiled, skip, skip_code
from ammeter.torch_hooks.hook_points import Handle, HookPoint, owner_of

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
CallObserver = Callable[[tuple[Any, ...], dict[str, Any]], After | None]

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
    return _subscribe(owner_of(kind, name), name, before, after, after if always else None)


def methods(
    kinds: Iterable[type], name: str, *, before: Before | None = None, after: After | None = None
) -> list[Handle]:
    """Calls back around this method of several classes, once per shared definition."""
    owners = dict.fromkeys(owner_of(kind, name) for kind in kinds)
    return [_subscribe(owner, name, before, after) for owner in owners]


def function(module: Any, name: str, *, before: Before | None = None, after: After | None = None) -> Handle:
    """Calls back around a module-level function that its module calls by name.

    There are no callbacks inside a region that torch.compile traces: the function becomes part of the graph.
    """
    if not callable(getattr(module, name, None)):
        raise AttributeError(f"{module.__name__} has no function {name!r}")
    return _subscribe(module, name, before, after)


def backward(*, before: Before | None = None, after: After | None = None, always: bool = False) -> Handle:
    """Calls back around torch.autograd.backward, which Tensor.backward calls, too; see outputs().

    Nested calls, such as those of a checkpointed block, also cause callbacks: see inside_backward().

    Args:
        always: as in method().
    """
    return _subscribe(autograd, "backward", before, after, after if always else None)


def outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the tensor or tensors that a call of backward() starts from."""
    return args[0] if args else kwargs.get("tensors")


def inside_backward() -> bool:
    """Whether a backward pass is running; calls made there belong to the outer pass."""
    return graph_task() not in replayed_passes


def called(kind: type, observe: CallObserver) -> Handle:
    """Calls back around calls of a class's instances.

    A class that inherits __call__ gets its own until the last subscriber leaves. Nothing is set on instances, so that a
    pickle or copy of one contains nothing of Ammeter. Traces of torch.compile and torch.export contain none either,
    but the functions that observe calls must themselves be safe from tracing.

    Args:
        observe: receives (args, kwargs), args[0] being the instance. Returns a function that is called with (args,
            kwargs, result) at the end of the call, with RAISED if it raised, or None.
    """
    key = (id(kind), "__call__")
    if key not in _patches:
        previous = _pass_throughs.pop(key, None)
        _patches[key] = previous if previous and vars(kind).get("__call__") is previous.wrapper else CallPatch(kind)
    skip_code(getattr(observe, "__func__", observe).__code__)
    return _patches[key].join((observe,))


def switched_off(kind: type) -> Handle:
    """Makes new objects of a class of torch.amp as with enabled=False: for `ammeter canary`, never in other runs."""
    return method(kind, "__init__", after=lambda args, _, __: setattr(args[0], "_enabled", False))


def hook_point(owner: Any, name: str) -> HookPoint:
    """Returns the hook point of a class's method or a module's function.

    Raises:
        KeyError: it has no subscribers.
    """
    owner = owner_of(owner, name) if isinstance(owner, type) else owner
    return _patches[id(owner), name]


def call_late(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Calls back the subscribers that joined during a call of this method or function, before it does anything."""
    for before in hook_point(owner, name).calls[0]:
        before(args, kwargs)


def attached() -> list[str]:
    """Returns the patched names, such as 'GradScaler.update', for tests and people."""
    return [f"{patch.owner.__name__}.{patch.name}" for patch in _patches.values()]


class _Patch(HookPoint):
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
        for patch in _patches.values():
            if patch.name == name:
                self.overridden = patch.overridden = True
        self.wrapper = _wrap(self)
        setattr(owner, name, self.wrapper)

    def leave(self, subscriber: tuple[Any, ...]) -> None:
        super().leave(subscriber)
        if self.subscribers:
            return
        _patches.pop((id(self.owner), self.name), None)
        if vars(self.owner).get(self.name) is self.wrapper:
            self.restore()

    def restore(self) -> None:
        setattr(self.owner, self.name, self.original)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a pass-through that needs no ammeter, for classes pickled by value (cloudpickle)."""
        state = {"active": False, "overridden": False, "subscribers": (), "latest": {}, "evaluates": {}}
        return SimpleNamespace, (), state | {"name": self.name}


class CallPatch(_Patch):
    """A patched class's __call__, which may be inherited; each subscriber selects instances.

    Attributes:
        latest: instance id -> (args, kwargs) of its last call, for paused subscribers that it may resume.
        evaluates: instance id -> function that a call outside training calls before it, with the same purpose.
    """

    def __init__(self, owner: type) -> None:
        HookPoint.__init__(self, parts=1)
        self.latest: dict[int, Any] = {}
        self.evaluates: dict[int, Callable[[], None]] = {}
        self.owner = owner
        self.name = "__call__"
        self.own = "__call__" in vars(owner)
        self.source = next(kind for kind in owner.__mro__ if "__call__" in vars(kind))
        self.original = vars(self.source)["__call__"]
        self.frames = frames_compiled()
        self.wrapper = _wrap_calls(self)
        setattr(owner, "__call__", self.wrapper)  # noqa: B010 - a class of the program

    def restore(self) -> None:
        """Restores __call__, or keeps it as a pass-through if torch has compiled code since.

        Compiled code is valid for the class as it is; removing __call__ would cause a recompilation.
        """
        if self.own:
            super().restore()
        elif frames_compiled() != self.frames:
            _pass_throughs[id(self.owner), self.name] = self
        else:
            delattr(self.owner, self.name)


def _wrap(patch: _Patch) -> Callable[..., Any]:
    original = patch.original
    name = patch.name if isinstance(patch.owner, type) else f"{patch.owner.__name__}.{patch.name}"

    traced = not _breaks_graphs(patch)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # While torch.compile traces, only the original is called, so that fullgraph=True remains possible. The compiler
        # knows the first of the two conditions and does not evaluate the other, which is is_compiling() in fewer calls.
        if (traced and (is_dynamo_compiling() or compiler._is_compiling_flag)) or not patch.active:
            return original(*args, **kwargs)
        call = None
        if patch.overridden:
            call = (id(args[0]) if args else 0, name)
            if call in _running:
                return original(*args, **kwargs)
            _running.add(call)
        try:
            for before in patch.calls[0]:
                before(args, kwargs)
            result = original(*args, **kwargs)
        except BaseException:
            for always in patch.calls[2]:
                always(args, kwargs, RAISED)
            raise
        finally:
            if call:
                _running.discard(call)
        for after in patch.calls[1]:
            after(args, kwargs, result)
        return result

    if traced:  # not compiled as a frame of its own, which for torch.autograd.backward would add a graph break
        skip_code(wrapper.__code__)
    else:  # not traced itself; the functions that the original calls, such as a compiled optimizer, still are
        skip(wrapper)
    return functools.update_wrapper(wrapper, original)


def _wrap_calls(patch: CallPatch) -> Callable[..., Any]:
    own, source = patch.original if patch.own else None, patch.source

    def choose(*args: Any, **kwargs: Any) -> Any:
        original = own or source.__call__  # looked up at each call: torch.fx patches nn.Module's while it traces
        if is_dynamo_compiling() or compiler._is_compiling_flag:
            return original(*args, **kwargs)
        key = id(args[0]) if args else 0
        if key in patch.latest:
            patch.latest[key] = args, kwargs
        if key in patch.evaluates and not (args[0].training and torch.is_grad_enabled()):
            patch.evaluates[key]()
        if not patch.active:
            return original(*args, **kwargs)
        ends: tuple[After, ...] = ()
        for observe in patch.calls[0]:
            end = observe(args, kwargs)
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
    return functools.update_wrapper(choose, patch.original)


def _breaks_graphs(patch: _Patch) -> bool:
    """Whether torch.compile ends a graph here anyway: it traces none of torch's patched methods."""
    return not isinstance(patch.owner, ModuleType) and patch.original.__module__.partition(".")[0] == "torch"


def _subscribe(
    owner: Any, name: str, before: Before | None, after: After | None, always: After | None = None
) -> Handle:
    patch = _patches.get((id(owner), name))
    if patch is None:
        patch = _patches[(id(owner), name)] = _Patch(owner, name)
    return patch.join((before, after, always))


graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)

replayed_passes = {-1}
"""No backward pass, and those inside which replay.backward() runs callbacks that concern them."""

_patches: dict[tuple[int, str], _Patch] = {}
_pass_throughs: dict[tuple[int, str], _Patch] = {}
"""Wrappers without subscribers that remain installed: see CallPatch.restore()."""
_running: set[tuple[int, str]] = set()
"""Pairs of (object, method) on the stack: an override and the super() it calls count as one call."""
