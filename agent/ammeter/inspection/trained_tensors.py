"""Compares the tensors of a checkpoint with those that the run trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

MIN_NAMED_SHARE = 0.5
"""Share of the run's names that a checkpoint must have, for the others to be missing. With fewer it names them in
another way, as an exported model does."""

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""Parts of a name that wrappers of a model add."""

Shapes = Mapping[str, tuple[int, ...]]


def absent_tensors(read: Shapes, trained: Shapes) -> str:
    """Says which trained tensors a checkpoint lacks, '' if none.

    The name of a tensor is the end of its key in the checkpoint. A tensor with another key is not missing as long as a
    tensor of its shape is left, as with tied weights, of which one has another name in the file.
    """
    keys: dict[str, str] = {}
    for key in read:
        for end in _ends(_plain(key)):
            keys.setdefault(end, key)
    found = {name: keys[_plain(name)] for name in trained if _plain(name) in keys}
    found = {name: key for name, key in found.items() if read[key] == trained[name]}
    unnamed = [name for name in trained if name not in found]
    if not unnamed or len(found) < MIN_NAMED_SHARE * len(trained):
        return ""
    left = Counter(shape for key, shape in read.items() if key not in set(found.values()))
    absent = [name for name in unnamed if not left[trained[name]]]
    return f"{len(absent)} of {len(trained)} trained tensors, {absent[0]} first" if absent else ""


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
