"""Facts of a run for comparisons: model, optimizer, hardware, driver and libraries.

Read once, at watch(). Every fact is a short text; one that cannot be read is omitted.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ammeter._version import __version__
from ammeter.environment import identity, source_control
from ammeter.redaction import process_redactor
from ammeter.tensors import async_copy
from ammeter.torch_hooks.targets import Watched
from ammeter.wire.frames import INTERACTIVE

MAX_FACT_CHARS = 2_000
MAX_SETTINGS = 48
"""Maximum number of optimizer settings stored; torch's own optimizers have a dozen at most."""

OPTIMIZER = "optimizer"

NOT_SETTINGS = frozenset(
    ("params", "param_names", "name", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
)
"""Entries of a parameter group that are not settings: tensors, names, and values stored by schedulers."""

DRIVER = Path("/proc/driver/nvidia/version")
CPU = Path("/proc/cpuinfo")
MAX_READ_BYTES = 2**16
_DRIVER_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")
_CPU_MODEL = re.compile(r"^(?:model name|Model)\s*:\s*(.+)$", re.MULTILINE)

Facts = dict[str, str]


def environment(watched: Watched) -> Facts:
    """Returns all known facts of where and how a run trains."""
    facts: Facts = {"torch": str(torch.__version__), "python": platform.python_version(), "ammeter": __version__}
    readers: tuple[Callable[[Watched], Facts], ...] = (_of_device, _of_model, _of_optimizers, _of_program)
    for read in readers:
        with suppress(Exception):  # a class of the program may raise anything; the other facts stay
            facts |= read(watched)
    dtypes = sorted({tensor.dtype for tensor in watched.tensors})
    facts |= identity.launcher() | identity.job() | identity.trace() | {"dtypes": ",".join(dtypes)}
    return {name: process_redactor.fact(name, value)[:MAX_FACT_CHARS] for name, value in facts.items()}


def _of_device(watched: Watched) -> Facts:
    if not torch.cuda.is_available():
        cpu = _CPU_MODEL.search(_start_of(CPU))
        facts = {"device": platform.machine(), "threads": str(torch.get_num_threads())}
        return facts | ({"cpu": cpu[1].strip()} if cpu else {})
    devices = _devices(watched)
    facts = {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "devices": str(len(devices))}
    return facts | _of_nvidia(watched)


def _of_nvidia(watched: Watched) -> Facts:
    if torch.version.cuda is None:
        return {}
    facts = capability() | uuids(watched)
    driver = _DRIVER_VERSION.search(_start_of(DRIVER))
    facts |= {"driver": driver[0]} if driver else {}
    with suppress(RuntimeError):  # incompatible libraries: the program gets the error where it uses them
        version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        facts |= {"cudnn": str(version)} if version else {}
    return facts


def capability() -> Facts:
    """Returns the CUDA compute capability of the GPU, such as 8.0; empty for other vendors."""
    if torch.version.cuda is None:
        return {}
    major, minor = torch.cuda.get_device_capability()
    return {"capability": f"{major}.{minor}"}


def uuids(watched: Watched) -> Facts:
    """Returns the NVML UUIDs of the model's devices, or of the current one if none.

    The model may not have been moved to a device yet.
    """
    if torch.version.cuda is None:
        return {}
    properties = [torch.cuda.get_device_properties(device) for device in _devices(watched)]
    names = sorted(f"GPU-{device.uuid}" for device in properties if getattr(device, "uuid", None))
    return {"device_uuid": ",".join(names)} if names else {}


def _devices(watched: Watched) -> list[torch.device]:
    """Returns the devices of the model and its replicas, or the current one if none.

    The model may not have been moved to a device yet.
    """
    devices = {tensor.device for _, tensor in watched.alive() if tensor.device.type == "cuda"}
    for ref in watched.models:
        model = ref()
        if isinstance(model, torch.nn.DataParallel):
            devices |= {torch.device("cuda", index) for index in model.device_ids}
    return sorted(devices, key=str) or [torch.device("cuda", torch.cuda.current_device())]


def _of_model(watched: Watched) -> Facts:
    """Returns the parameter counts of the whole model, even if ranks have shards."""
    models = [model for ref in watched.models if (model := ref()) is not None]
    distinct = {id(parameter): parameter for model in models for parameter in model.parameters()}
    parameters = [parameter for parameter in distinct.values() if not is_lazy(parameter)]
    if not parameters:
        return {}
    return {
        "parameters": str(sum(parameter.numel() for parameter in parameters)),
        "trainable_parameters": str(sum(parameter.numel() for parameter in parameters if parameter.requires_grad)),
        "parameter_tensors": str(len(parameters)),
    }


def _of_program(_: Watched) -> Facts:
    """Returns the commit of the program, and whether a person runs it piece by piece, as in a notebook."""
    commit = source_control.commit_of(sys.argv[0] if sys.argv else "")
    return ({"git_commit": commit} if commit else {}) | ({INTERACTIVE: "yes"} if hasattr(sys, "ps1") else {})


def _of_optimizers(watched: Watched) -> Facts:
    """Returns the settings of the optimizers.

    optimizer: the classes. optimizer.tensors: number of tensors in each group. optimizer.lr and other settings: one
    value per parameter group, or a single one if all are equal. With a scheduler, lr is the initial value.
    """
    optimizers = [innermost(optimizer) for optimizer in watched.optimizers]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if not groups:
        return {}
    names = dict.fromkeys(name for group in groups for name in group if isinstance(name, str))
    facts = {OPTIMIZER: "+".join(type(optimizer).__name__ for optimizer in optimizers)}
    facts[f"{OPTIMIZER}.tensors"] = ", ".join(str(len(group["params"])) for group in groups)
    for name in [name for name in names if name not in NOT_SETTINGS][:MAX_SETTINGS]:
        values = [
            _setting(group.get("initial_lr", group.get("lr")) if name == "lr" else group.get(name)) for group in groups
        ]
        if any(value is not None for value in values):
            facts[f"{OPTIMIZER}.{name}"] = _of_groups([value or "not set" for value in values])
    return facts


def innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Returns the optimizer inside wrappers for a precision or a launcher."""
    seen = {id(optimizer)}
    while isinstance(inner := vars(optimizer).get("optimizer"), torch.optim.Optimizer) and id(inner) not in seen:
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def _of_groups(values: Sequence[str]) -> str:
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def _setting(value: Any) -> str | None:
    """Formats a plain value; a tensor on a device is not waited for."""
    if isinstance(value, torch.Tensor):
        number = async_copy.known(value)
        return "on the device" if number is None else repr(float(number))
    if isinstance(value, list | tuple):
        parts = [_setting(entry) or "None" for entry in value]
        return f"({', '.join(parts)})"
    if isinstance(value, bool | str) or value is None:
        return None if value is None else str(value)
    return _number(value)


def _number(value: Any) -> str | None:
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _start_of(path: Path) -> str:
    """Returns the start of a /proc file, or '' if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_READ_BYTES).decode(errors="replace")
    return ""
