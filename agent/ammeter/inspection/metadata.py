"""Reads the index of a distributed checkpoint, which is a pickle, without running what somebody put into it."""

from __future__ import annotations

import io
import pickle
from typing import Any

from ammeter.inspection.place import NotJudged

INDEX_FILE = ".metadata"

_ALLOWED = {
    "torch.distributed.checkpoint.metadata": None,
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": None,
    "pathlib": ("PosixPath", "PurePosixPath", "Path"),
    "pathlib._local": ("PosixPath", "PurePosixPath", "Path"),
    "collections": ("OrderedDict",),
}
"""Module -> names that an index of torch 2.4 to 2.13 has; None: those that _is_harmless accepts."""

_OF_TORCH = ("Size", "device")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Raises NotJudged for everything that torch does not put into an index."""
        names = _ALLOWED.get(module, ())
        if "." not in name and (names is None or name in names):
            found = super().find_class(module, name)
            if names is not None or _is_harmless(module, name, found):
                return found
        raise NotJudged(
            f"its {INDEX_FILE} contains {module}.{name}, which torch does not put into it; it is not loaded"
        )


def read_index(content: bytes) -> Any:
    """Loads the index.

    Raises:
        NotJudged: it contains something else.
        Exception: it is damaged.
    """
    return _Unpickler(io.BytesIO(content)).load()


def _is_harmless(module: str, name: str, found: Any) -> bool:
    """Whether it is a dtype, size or layout of torch, or a class that torch's own module defines for the index."""
    import torch

    if module == "torch":
        return name in _OF_TORCH or isinstance(found, torch.dtype | torch.layout | torch.memory_format)
    return isinstance(found, type) and found.__module__ == module
