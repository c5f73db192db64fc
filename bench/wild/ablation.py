"""Ablation: programs are watched while one hook of torch's API is off, so that only state is left to find a fault by.

The hook is off in the watched process alone: site/sitecustomize.py keeps the agent from patching the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SITE = Path(__file__).parent / "site"


@dataclass(frozen=True)
class Hook:
    """A hook of torch's API.

    Attributes:
        names: What the agent patches for it, as "CLASS.METHOD" or "MODULE.FUNCTION"; subclasses are included.
        used: Matches the text of programs that call it.
    """

    names: tuple[str, ...]
    used: str


_CLIP = "torch.nn.utils.clip_grad"
_SERIALIZATION = "torch.serialization"

HOOKS: Mapping[str, Hook] = {
    "scaler.init": Hook(("GradScaler.__init__",), r"\bGradScaler\("),
    "scaler.scale": Hook(("GradScaler.scale",), r"\.scale\("),
    "scaler.unscale_": Hook(("GradScaler.unscale_",), r"\.unscale_\("),
    "scaler.step": Hook(("GradScaler.step",), r"\bGradScaler\("),
    "scaler.update": Hook(("GradScaler.update",), r"\bGradScaler\("),
    "optimizer.init": Hook(("Optimizer.__init__",), r"torch\.optim\b"),
    "optimizer.step": Hook(("Optimizer.step",), r"torch\.optim\b"),
    "optimizer.zero_grad": Hook(("Optimizer.zero_grad",), r"\.zero_grad\("),
    "scheduler.step": Hook(("LRScheduler.step",), r"\blr_scheduler\b"),
    "backward": Hook(("torch.autograd.backward", "torch.autograd.grad"), r"\.backward\(|autograd\.grad\("),
    "all_reduce": Hook(("torch.distributed.all_reduce",), r"\ball_reduce\("),
    "clip_grad_norm_": Hook(
        (f"{_CLIP}._clip_grads_with_norm_", f"{_CLIP}.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        r"\bclip_grad_norm_\(",
    ),
    "clip_grad_value_": Hook((f"{_CLIP}.clip_grad_value_", "torch.nn.utils.clip_grad_value_"), r"\bclip_grad_value_\("),
    "clip_grouping": Hook((f"{_CLIP}._group_tensors_by_device_and_dtype",), r"\bclip_grad_(norm|value)_\("),
    "autocast": Hook(("autocast.__init__", "autocast.__enter__", "autocast.__exit__"), r"\bautocast\("),
    "load_state_dict": Hook(
        (
            "Module.load_state_dict",
            "Optimizer.load_state_dict",
            "GradScaler.load_state_dict",
            "LRScheduler.load_state_dict",
        ),
        r"\.load_state_dict\(",
    ),
    "torch.load": Hook(
        (
            "_open_zipfile_reader.__init__",
            f"{_SERIALIZATION}._load",
            f"{_SERIALIZATION}._legacy_load",
        ),
        r"\btorch\.load\(",
    ),
    "torch.save": Hook(
        (
            "_open_zipfile_writer_file.__exit__",
            "_open_zipfile_writer_buffer.__exit__",
            f"{_SERIALIZATION}._save",
            f"{_SERIALIZATION}._legacy_save",
        ),
        r"\btorch\.save\(",
    ),
    "average": Hook(("AveragedModel.update_parameters",), r"\bAveragedModel\("),
}


def used_by(text: str) -> list[str]:
    """The hooks that a program with this text calls."""
    return [name for name, hook in HOOKS.items() if re.search(hook.used, text)]


def environment(without: str) -> dict[str, str]:
    """Variables of a program that is watched without these hooks, separated by commas; none for ''."""
    if not without:
        return {}
    names = [name for hook in without.split(",") for name in HOOKS[hook].names]
    return {"PYTHONPATH": str(SITE), "WILD_UNPATCHED": ",".join(names)}


def hooks(text: str) -> str:
    """Argument type of names of hooks, separated by commas; '' is none."""
    unknown = sorted(set(filter(None, text.split(","))) - HOOKS.keys())
    if unknown:
        raise ValueError(f"there is no hook {', '.join(unknown)}; use {', '.join(HOOKS)}")
    return text
