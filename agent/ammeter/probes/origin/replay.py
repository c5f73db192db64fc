"""Replays the forward pass of a bad step with hooks on all modules.

A replay finds the origin of a fault that occurs in one step only. It needs the program's consent, because the inputs
of a step are kept until its optimizer steps, and a bad step takes one forward pass longer. The replay runs on a
shadow of the model, with the same parameters and with copies of the buffers, so that running statistics do not
change. The states of the random generators are restored afterwards. Other objects that a module keeps, such as lists,
are shared with the shadow.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ammeter.probes.origin.floats import inside, version
from ammeter.probes.origin.visits import Visits
from ammeter.tensors.hidden_reads import is_plain
from ammeter.torch_hooks.forward_calls import innermost

MAX_REPLAYS = 50
"""Replays in a run; it bounds the time that a run with many bad steps spends on them."""

Guard = Callable[[Callable[..., None]], Callable[..., None]]


Autocast = dict[str, tuple[bool, torch.dtype]]


class Refused(Exception):
    """Raised if a replay is impossible; the message is the reason in one word."""


class ForwardCall(NamedTuple):
    """The state at the beginning of one forward pass."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: list[int]
    generators: list[torch.Tensor]
    autocast: Autocast


def capture(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ForwardCall:
    return ForwardCall(module, args, kwargs, _versions(args, kwargs), _generators(), _autocast())


def replay(calls: list[ForwardCall], prefix: Callable[[torch.nn.Module], str], guard: Guard) -> Visits:
    """Runs the forward passes of a step again.

    Raises:
        Refused: the replay could change or stop the program, or it has failed.
    """
    visits = Visits()
    for call in calls:
        model = innermost(call.module)
        _check_replayable(call, model)
        shadow = _shadow(model, {})
        handles = list(visits.enter(shadow, prefix(model), guard))
        try:
            with _original_state(call), _program_modes():
                shadow(*call.args, **call.kwargs)
        except torch.OutOfMemoryError as error:
            raise Refused("memory") from error
        except Exception as error:
            raise Refused("raised") from error
        finally:
            visits.leave()
            for handle in handles:
                handle.remove()
    return visits


def _check_replayable(call: ForwardCall, model: torch.nn.Module) -> None:
    if _versions(call.args, call.kwargs) != call.versions:
        raise Refused("changed")
    if torch._C._len_torch_dispatch_stack():
        raise Refused("busy")
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    is_single_rank = not distributed or torch.distributed.get_world_size() == 1
    modules = [*call.module.modules()]
    kinds = {kind.__name__ for module in modules for kind in type(module).__mro__}
    if any("FSDP" in name or "FullySharded" in name for name in kinds) or not all(map(is_plain, model.parameters())):
        raise Refused("sharded")
    if not is_single_rank and not isinstance(call.module, DistributedDataParallel):
        raise Refused("distributed")
    if not is_single_rank and any(isinstance(module, torch.nn.SyncBatchNorm) for module in modules):
        raise Refused("distributed")
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise Refused("scripted")


def _shadow(module: torch.nn.Module, shadows: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """A copy of a module with the same parameters, copied buffers, and shadows as children."""
    if isinstance(module, torch._dynamo.OptimizedModule):
        module = innermost(module)
    if id(module) in shadows:
        return shadows[id(module)]
    shadow: torch.nn.Module = module.__new__(type(module))
    shadows[id(module)] = shadow
    attributes = dict(vars(module))
    forward = attributes.get("forward")
    if isinstance(forward, MethodType) and forward.__self__ is module:
        attributes["forward"] = MethodType(forward.__func__, shadow)
    elif forward is not None:
        raise Refused("patched")
    attributes["_parameters"] = dict(module._parameters)
    buffers, children = module._buffers.items(), module._modules.items()
    attributes["_buffers"] = {name: None if buffer is None else buffer.clone() for name, buffer in buffers}
    attributes["_modules"] = {name: None if child is None else _shadow(child, shadows) for name, child in children}
    hooks = {name: value for name, value in attributes.items() if "hooks" in name and isinstance(value, dict)}
    attributes |= {name: registered.copy() for name, registered in hooks.items()}
    attributes["_compiled_call_impl"] = None
    shadow.__dict__.update(attributes)
    return shadow


_program_modes: Any = getattr(torch._C, "_EnableTorchFunction", nullcontext)
"""Enables the program's function modes, such as a default device, which are disabled in Ammeter's callbacks.

The program's forward pass depends on them.
"""


@contextmanager
def _original_state(call: ForwardCall) -> Iterator[None]:
    """Restores the generators and autocast of the original pass, and the present ones afterwards.

    Gradients are off during the replay.
    """
    now, python, legacy = _generators(), random.getstate(), np.random.get_state()
    autocast, cached = _autocast(), torch.is_autocast_cache_enabled()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            _set_generators(call.generators)
            _set_autocast(call.autocast)
            torch.set_autocast_cache_enabled(False)  # weights cast here have no gradients, which a real pass needs
            yield
        finally:
            torch.clear_autocast_cache()
            torch.set_autocast_cache_enabled(cached)
            _set_autocast(autocast)
            _set_generators(now)
            random.setstate(python)
            np.random.set_state(legacy)


def _generators() -> list[torch.Tensor]:
    """The states of torch's generators, the CPU's first.

    The CUDA state is a seed and an offset, which the host knows without synchronization.
    """
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if started else [])]


def _autocast() -> Autocast:
    return {device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")}


def _set_autocast(states: Autocast) -> None:
    for device, (enabled, dtype) in states.items():
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _set_generators(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    return [version(tensor) for _, tensor in inside((args, kwargs))]
