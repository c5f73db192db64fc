"""Calls back around each forward call of the watched models.

Nothing is set on the model itself: its class gets its own __call__ while it is watched, see patch.called. A pickled or
copied model therefore contains nothing of Ammeter, and torch.compile traces the same code with and without Ammeter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch._dynamo import OptimizedModule
from torch._dynamo.eval_frame import skip_code

from ammeter.torch_hooks import patch
from ammeter.torch_hooks.hook_points import Group, Handle, HookPoint
from ammeter.torch_hooks.patch import RAISED

__all__ = ["RAISED", "Forward", "hookable", "innermost", "is_compiled", "wrapped"]

WRAPPER_NAMES = ("module", "_orig_mod", "_fsdp_wrapped_module")
"""Submodules in which DDP, torch.compile and FSDP keep the module that they wrap."""

Before = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]
After = Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any], Any], None]


class Forward:
    """Forward calls of the models given to watch(), wrapped, compiled or not.

    Only the outermost of nested calls counts. A copy of a model is another model. There are no callbacks for calls
    inside a function that torch.compile traces, nor for calls that torch.jit.trace or torch.export records.

    Attributes:
        on_evaluation: called before a call that evaluates while the callbacks are paused. It may resume them.
    """

    on_evaluation: Callable[[], None] | None = None

    def __init__(self, models: Iterable[weakref.ref[torch.nn.Module]]) -> None:
        given = [model for ref in models if (model := ref()) is not None]
        several = len(given) > 1
        parts = {
            part: prefix
            for at, model in enumerate(given)
            for part, prefix in callable_parts(model, f"model{at}." if several else "")
        }
        self._roots = {id(module): weakref.ref(module) for part in parts for module in (part, *wrapped(part))}
        self._prefixes = {id(innermost(part)): prefix for part, prefix in parts.items() if prefix}
        self._hook_point = HookPoint(parts=4)
        self._class_handles: list[Handle] = []
        self._group = Group(())
        self._called: set[int] = set()
        self._recorded: set[int] = set()
        self._open: int | None = None
        skip_code(Forward._ends.__code__)
        skip_code(Forward._is_around_root.__code__)

    def attach(self) -> list[Handle]:
        """Subscribes to the classes of the models; a class that accepts no attributes is skipped."""
        self._class_handles = []
        for kind in dict.fromkeys([*map(type, self.models()), OptimizedModule]):
            with suppress(AttributeError, TypeError):
                self._class_handles.append(patch.called(kind, self._begins))
        self._group = Group(self._class_handles)
        return self._class_handles

    def pause(self) -> None:
        """Pauses the callbacks if no subscriber is active; the last call is recorded, see take_last()."""
        if self._hook_point.active:
            return
        if self._called:
            self._recorded, self._called = self._called, set()
        self._group.pause()
        for calls in self._patches():
            calls.latest.update(dict.fromkeys(self._recorded))
            if self.on_evaluation is not None:
                calls.evaluates.update(dict.fromkeys(self._roots, self.on_evaluation))

    def resume(self) -> None:
        self._group.resume()
        for calls in self._patches():
            for key in self._roots:
                calls.evaluates.pop(key, None)

    def take_last(self) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]] | None:
        """Returns and releases (module, args, kwargs) of the last training call since pause()."""
        last_call = None
        for calls in self._patches():
            for key in self._recorded:
                last_call = calls.latest.pop(key, None) or last_call
        if last_call is None or not (last_call[0][0].training and torch.is_grad_enabled()):
            return None
        args, kwargs = last_call
        return args[0], args[1:], kwargs

    def subscribe(
        self,
        *,
        trains: Before | None = None,
        evaluates: Before | None = None,
        after: After | None = None,
        raised: After | None = None,
    ) -> Handle:
        """Subscribes to forward calls. Each callback must be made safe by a guard.

        The module is the one that the program called: the model or a wrapper around it.

        Args:
            trains: receives (module, args, kwargs) before a call in training mode with gradients enabled.
            evaluates: receives the same before any other call.
            after: receives (module, args, kwargs, output) after every call; the output of a call that raised is RAISED.
            raised: receives the same, only after a call that raised.
        """
        return self._hook_point.join((trains, evaluates, after, raised))

    def models(self) -> list[torch.nn.Module]:
        """Returns the live models, each also without torch's wrappers."""
        return [model for ref in self._roots.values() if (model := ref()) is not None]

    def prefix(self, model: torch.nn.Module) -> str:
        """Returns the prefix of this model's tensor and module names; '' for a single model."""
        return self._prefixes.get(id(model), "")

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model = args[0]
        ref = self._roots.get(id(model))
        if (ref is None or ref() is not model) and not self._is_around_root(model):
            return None
        if self._open is not None or _tracing_state() is not None:
            return None
        self._open = id(model)
        self._called.add(id(model))
        for before in self._hook_point.calls[not (model.training and torch.is_grad_enabled())]:
            before(model, args[1:], kwargs)
        return self._ends

    def _patches(self) -> Iterator[patch.CallPatch]:
        return (handle.hook_point for handle in self._class_handles if isinstance(handle.hook_point, patch.CallPatch))

    def _is_around_root(self, model: torch.nn.Module) -> bool:
        """Whether the module is a torch.compile wrapper, made after watch(), of a watched model."""
        inner = model.__dict__["_modules"].get("_orig_mod") if isinstance(model, OptimizedModule) else None
        ref = self._roots.get(id(inner))
        return ref is not None and ref() is inner

    def _ends(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._open = None
        _, _, afters, raised = self._hook_point.calls
        if afters or output is RAISED:
            for after in reversed((*afters, *raised) if output is RAISED else afters):
                after(args[0], args[1:], kwargs, output)


def callable_parts(model: torch.nn.Module, prefix: str) -> Iterator[tuple[torch.nn.Module, str]]:
    """Yields the model with its prefix; of a container that has no forward(), such as a ModuleList, its members."""
    if type(model).forward is not torch.nn.Module.forward:
        yield model, prefix
        return
    for name, child in model.named_children():
        yield from callable_parts(child, f"{prefix}{name}.")


def wrapped(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yields the modules inside torch's wrappers (DDP, DataParallel, FSDP, torch.compile), outermost first."""
    while type(model).__module__.startswith("torch."):
        candidates = (model._modules.get(name) for name in WRAPPER_NAMES)
        inner = next((module for module in candidates if module is not None), None)
        if inner is None:
            return
        yield inner
        model = inner


def innermost(model: torch.nn.Module) -> torch.nn.Module:
    """Returns the program's own model, without torch's wrappers."""
    return [model, *wrapped(model)][-1]


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether torch.compile replaces the module's forward."""
    return isinstance(module, OptimizedModule) or getattr(module, "_compiled_call_impl", None) is not None


def hookable(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields (path, module) of modules whose hooks run outside compiled code, each once."""
    seen: set[int] = set()

    def walk(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
        if id(module) in seen or isinstance(module, torch.jit.ScriptModule):
            return
        seen.add(id(module))
        if is_compiled(module):
            return
        yield path, module
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, f"{path}.{name}" if path else name)

    return walk(model, "")


_tracing_state: Callable[[], Any] = torch._C._get_tracing_state
