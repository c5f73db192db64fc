"""The first part: what the machine has, and why the benchmark cannot run on it."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch

from ammeter.tensors import native
from bench.agent.gpu.rows import FAILED, LEFT_OUT, OK, Row, emit

PART = "machine"
NEEDED_BYTES = 30 * 2**30
"""Free device memory: GPT-2 small with AdamW and the activations of 8 x 1,024 tokens takes most of it."""

MIN_CAPABILITY = (7, 0)
"""Triton compiles for this and later."""


def run(dry: bool) -> int:
    """Prints the machine in one line, last; 1 if nothing can be measured on it."""
    began = time.monotonic()
    stops = list(reasons_to_stop(dry))
    for stop in stops:
        emit(Row(PART, "what is needed", stop, "", FAILED))
        print(f"stopped: {stop}")
    if stops:
        return 1
    emit(Row(PART, "first kernel", f"{time.monotonic() - began:.1f} s", "", OK))
    for what, missing in optional():
        emit(Row(PART, what, missing, "", LEFT_OUT if missing.startswith("missing") else OK))
    print(description())
    return 0


def reasons_to_stop(dry: bool) -> Iterator[str]:
    if not torch.cuda.is_available():
        built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        yield f"torch.cuda.is_available() is False ({built}): no device, or its driver is too old for this torch"
        return
    try:
        answer = float((torch.ones(1024, device="cuda") * 2).sum().item())
    except Exception as error:  # noqa: BLE001 - drivers and torch raise what they like
        yield f"the device computes nothing: {type(error).__name__}: {error}"
        return
    if answer != 2048.0:
        yield f"the device computes 2048 as {answer}"
    free, total = torch.cuda.mem_get_info()
    if free < NEEDED_BYTES and not dry:
        yield f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB of device memory are free; {NEEDED_BYTES // 2**30} needed"
    if torch.cuda.get_device_capability() < MIN_CAPABILITY:
        yield f"compute capability {torch.cuda.get_device_capability()} is too old; Triton needs {MIN_CAPABILITY}"


def optional() -> Iterator[tuple[str, str]]:
    """What single results need: its name, and its version or why it is missing."""
    for what, module in (("Triton", "triton"), ("NVML", "pynvml"), ("pytest", "pytest")):
        try:
            yield what, str(getattr(import_module(module), "__version__", "there"))
        except Exception as error:  # noqa: BLE001 - libraries that do not load raise what they like
            yield what, f"missing: {type(error).__name__}: {error}"
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")
    yield "C compiler, for Triton", compiler or "missing: Triton's launchers cannot be built, and no model be compiled"
    yield "compiled reader of the CPU", native.MISSING or "there"


def description() -> str:
    driver = Path("/proc/driver/nvidia/version")
    version = driver.read_text().splitlines()[0] if driver.exists() else "driver unknown"
    total = torch.cuda.mem_get_info()[1] / 2**30
    return (
        f"{torch.cuda.get_device_name()}, {total:.0f} GiB, {version}, torch {torch.__version__} for CUDA"
        f" {torch.version.cuda}, Python {platform.python_version()}, {os.cpu_count()} cores,"
        f" {time.strftime('%Y-%m-%d')}"
    )
