"""The cases of all modules in families/."""

from __future__ import annotations

import importlib
import pkgutil

from bench.cases import families
from bench.cases.case import Case


def cases() -> tuple[Case, ...]:
    """All cases, family by family."""
    names = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
    modules = [importlib.import_module(f"{families.__name__}.{name}") for name in names]
    return tuple(case for module in modules for case in module.CASES)
