"""What a part's process runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench.agent.gpu import stand_in
from bench.agent.gpu.parts import COMPILE, MACHINE


def run_part(name: str, *, dry: bool, seconds: float) -> int:
    """Prints the part's section; 1 if it failed.

    Args:
        dry: A stand-in takes CUDA's place in this process.
        seconds: When the process is ended.
    """
    if dry:
        stand_in.install()
    return _function(name, seconds)(dry)


def _function(name: str, seconds: float) -> Callable[[bool], int]:
    """Each part imports what it needs: an import that fails is the failure of one part."""
    if name == MACHINE:
        from bench.agent.gpu import machine

        return machine.run
    if name == "kernel":
        from bench.agent.gpu import kernel

        return kernel.run
    if name == "tests":
        from bench.agent.gpu import tested

        return tested.run
    from bench.agent.gpu import cost

    if name == COMPILE:
        return cost.compile_only
    return partial({"cost": cost.eager, "compiled": cost.compiled}[name], seconds=seconds - RESERVED_SECONDS)


RESERVED_SECONDS = 22.0
"""Of a part that measures steps: imports, and what a block takes beyond the end of the time."""
