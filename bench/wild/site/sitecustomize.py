"""Runs in each Python of an ablated program: the agent does not patch the names in WILD_UNPATCHED.

bench/wild/ablation.py puts this folder on PYTHONPATH. The agent does not know of it: its patches join hook points as
always, and the methods and functions of torch remain those of torch.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PATCH = "ammeter.torch_hooks.patch"
STEPS = "ammeter.torch_hooks.optimizer_steps"
LAUNCHER = "ammeter.launcher.inside.auto_watch"


class AfterImport:
    """A finder that changes one module of the agent when it has been imported."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        change = CHANGES.get(name)
        if change is None:
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        loader: Any = spec.loader if spec else None
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            change(module)

        loader.exec_module = executed
        return spec


def unpatch(patch: Any) -> None:
    """Restores the original as soon as one of the names is patched."""

    class Unheard(patch._Patch):  # type: ignore[misc]
        def __init__(self, owner: Any, name: str) -> None:
            super().__init__(owner, name)
            kinds = owner.__mro__ if isinstance(owner, type) else (owner,)
            if any(f"{kind.__name__}.{name}" in UNPATCHED for kind in kinds):
                self.restore()

    patch._Patch = Unheard


def unhook(steps: Any) -> None:
    """Registers none of torch's hooks for the steps of optimizers."""
    if "Optimizer.step" in UNPATCHED:
        for point in (steps._BEFORE, steps._AFTER):
            point._register = lambda _: NotRegistered()


def unhook_launcher(launcher: Any) -> None:
    """The same for the hooks by which `ammeter run` finds the first step."""
    if "Optimizer.step" in UNPATCHED:
        launcher.register_optimizer_step_pre_hook = launcher.register_optimizer_step_post_hook = lambda _: (
            NotRegistered()
        )


class NotRegistered:
    id = -1

    def remove(self) -> None:
        """Nothing was registered."""


CHANGES = {PATCH: unpatch, STEPS: unhook, LAUNCHER: unhook_launcher}
UNPATCHED = os.environ.get("WILD_UNPATCHED", "").split(",")
sys.meta_path.insert(0, AfterImport())
