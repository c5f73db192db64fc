"""Reads a checkpoint back: python -m ammeter.guards.restore_check PATH.

Prints one line of JSON. The process has the lowest priority, one thread, an address space of twice the file size plus a
few GiB, and a time limit of a minute plus one for every GiB. The file is mapped, so it does not compete with training
for memory.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ammeter.preparation.contents import contents_of

CHUNK_ELEMENTS = 2**20
"""Number of elements checked at once."""

BASE_SECONDS, SECONDS_PER_GIB = 60, 60
"""Seconds for the import of torch and a small file, and for each GiB."""

SPARE_BYTES = 16 * 2**30
"""Address space beyond twice the file: torch's libraries map several GiB that they never touch."""

UNMAPPED_BYTES = 2**30
"""Largest file of the old format that is read.

It cannot be mapped and must fit into memory.
"""

MAX_DEPTH = 12


def main(argv: list[str]) -> int:
    path = Path(argv[0])
    began = perf_counter()
    try:
        size = path.stat().st_size
        _limit_resources(size)
        result = restore(path, size)
    except OSError as error:
        result = {"outcome": "skipped", "reason": f"{type(error).__name__}: {error.strerror}"}
    except MemoryError:
        result = {"outcome": "skipped", "reason": "reading it needs more memory than the limit allows"}
    print(json.dumps({**result, "seconds": round(perf_counter() - began, 3)}))
    return 0


def restore(path: Path, size: int) -> dict[str, Any]:
    """Checks that a file loads and that every number is finite.

    outcome: `passed` if it loads with weights_only=True and every number is finite, `failed` if not, `skipped` if this
    cannot be determined. contents: what the file contains.
    """
    try:
        loaded = _load(path, size)
    except _Unmapped:
        return {"outcome": "skipped", "reason": "it has torch's old format and is too large to be read into memory"}
    except (MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - the error of a broken file is the result
        message = str(error).splitlines()[0][:200] if str(error) else ""
        reason = f"weights_only=True does not load it ({type(error).__name__}: {message})"
        return {"outcome": "failed", "reason": reason}
    return _check_numbers(loaded, size)


def _check_numbers(loaded: Any, size: int) -> dict[str, Any]:
    bad, tensors = [], 0
    for name, tensor in _tensors(loaded, "", 0):
        tensors += 1
        if not _is_finite(tensor):
            bad.append(name)
    contents = contents_of(loaded).plain()
    result = {"bytes": size, "tensors": tensors, "contents": contents}
    if bad:
        reason = f"{len(bad)} of {tensors} tensors are not finite, {bad[0]} first"
        return {"outcome": "failed", "reason": reason, **result}
    return {"outcome": "passed", "reason": f"{tensors} tensors, all finite", **result}


class _Unmapped(Exception):
    """A large file of the old format."""


def _load(path: Path, size: int) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
    if size > UNMAPPED_BYTES:
        raise _Unmapped
    return torch.load(path, map_location="cpu", weights_only=True)


def _tensors(value: Any, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor with its path, such as model.head.weight."""
    if isinstance(value, torch.Tensor):
        yield name or "it", value
    elif depth < MAX_DEPTH and isinstance(value, dict | list | tuple):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, element in inside:
            yield from _tensors(element, f"{name}.{key}" if name else str(key), depth + 1)


def _is_finite(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided:
        return True
    return all(bool(torch.isfinite(part).all()) for part in torch.split(tensor.detach().reshape(-1), CHUNK_ELEMENTS))


def _limit_resources(size: int) -> None:
    """Limits the resources of this process."""
    os.nice(19)
    torch.set_num_threads(1)
    limit = 2 * size + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.alarm(BASE_SECONDS + SECONDS_PER_GIB * (size // 2**30))


def compare(result: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Compares the read contents with those at saving: elements per dtype, optimizer and scaler."""
    if result["outcome"] != "passed":
        return result
    if saved.get("bytes") is not None and result.get("bytes") != saved["bytes"]:
        return {**result, "outcome": "skipped", "reason": "the file was replaced before it was read"}
    difference = _difference(saved.get("contents") or {}, result["contents"])
    if difference:
        return {**result, "outcome": "failed", "reason": difference}
    missing = [str(part) for part in saved.get("missing") or ()]
    if missing:
        reason = f"the file loads and is finite, but lacks {', '.join(missing)}"
        return {**result, "outcome": "partial", "reason": reason}
    return result


def _difference(saved: Mapping[str, Any], read: Mapping[str, Any]) -> str:
    if Counter(saved.get("weights") or {}) != Counter(read["weights"]):
        return "the file's weights differ from the saved ones in dtype or number of elements"
    lost = [name for name in ("optimizer", "scaler") if saved.get(name) and not read.get(name)]
    return f"the saved {' and '.join(lost)} was not read back" if lost else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
