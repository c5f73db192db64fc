"""Starts the notes after the import of torch, in programs that import ammeter. Does not import torch itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def install() -> None:
    """Starts the notes now if torch is imported, else after its import."""
    torch = sys.modules.get("torch")
    if torch is None:
        sys.meta_path.insert(0, _finder)
    elif not getattr(torch.__spec__, "_initializing", False):
        begin()


def remove() -> None:
    """Stops the notes and removes the finder; twice is fine."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
    module = sys.modules.get(f"{__package__}.observer")
    if module is not None:
        module.observer.stop()


def begin() -> None:
    """Starts the notes in a process that has imported torch, unless Ammeter is disabled; never raises."""
    # a torch that is too old or incomplete: watch() names the reason where the program calls it
    with suppress(Exception):
        from ammeter.environment import canary
        from ammeter.environment.settings import disabled, variables

        if canary.switches_off(variables()):
            from ammeter.preparation import float32

            float32.switch_off()
        if not disabled():
            from ammeter.preparation.observer import observer

            observer.begin()


class _Finder:
    """Observes the import of torch and provides no module itself; any other import costs a comparison of names."""

    _is_asking = False
    """Whether it asks the others. One of them may ask all finders itself, as that of `ammeter run` does."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._is_asking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment] # import needs no base class
        return spec

    def _found_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                return spec
        return None


class _Loader:
    """Wraps the package's own loader, which it restores before the import."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        begin()


_finder = _Finder()
