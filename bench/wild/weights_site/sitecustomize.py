"""Runs in each Python of a stranger's program: at its end, writes a digest of all parameters that were trained.

bench/wild/programs.py puts this folder on PYTHONPATH, in bare and in watched runs alike, and names the folder for the
digests in WILD_WEIGHTS. The trained parameters are those of optimizers that have stepped.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

OPTIMIZERS = "torch.optim.optimizer"

stepped: dict[int, Any] = {}
"""Optimizers by id, kept until the end of the program."""


class AfterImport:
    """A finder that registers a hook as soon as torch has optimizers."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        loader: Any = spec.loader if spec else None
        execute = loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            module.register_optimizer_step_post_hook(note)

        loader.exec_module = executed
        return spec


def note(optimizer: Any, _: Any, __: Any) -> None:
    stepped[id(optimizer)] = optimizer


def write() -> None:
    torch: ModuleType | Any = sys.modules.get("torch")
    total = hashlib.sha256()
    for optimizer in stepped.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = parameter.detach().cpu().contiguous().reshape(-1)
                total.update(values.view(torch.uint8).numpy().tobytes())
    if stepped:
        Path(os.environ["WILD_WEIGHTS"], os.environ.get("RANK", "0")).write_text(total.hexdigest())


if "WILD_WEIGHTS" in os.environ:
    sys.meta_path.insert(0, AfterImport())
    atexit.register(write)
