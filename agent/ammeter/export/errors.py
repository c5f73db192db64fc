"""What ends an export, each with its remedy."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ExportFailed(ValueError):
    """The run cannot be written to the target."""


def library(extra: str, *modules: str, option: str = "--to") -> list[Any]:
    """Imports the modules that a target needs.

    Args:
        extra: The extra of the distribution that installs them.
        option: The option of the command that names it.

    Raises:
        ExportFailed: one is not installed.
    """
    try:
        return [import_module(module) for module in modules]
    except ImportError as error:
        raise ExportFailed(
            f"{option} {extra} needs a library that cannot be imported ({error}); "
            f"install it with: pip install 'ammeter[{extra}]'"
        ) from error
