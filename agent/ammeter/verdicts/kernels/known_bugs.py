"""Bugs of kernels that public threads describe, with the machines on which they were seen.

An entry has what its thread says and no more: `torch` and `cudnn` are the first and the last release that the thread
names, which need not be all that have the bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ammeter.verdicts.framework.float16 import WRONG_CAPABILITY, WRONG_ON

TABLE_VERSION = "2026-11-26"
"""Day on which the threads were read last."""

HALF = ("float16", "bfloat16")
ATTENTION = ("Attention", "FlashAttn")

Facts = Mapping[str, str]
"""Facts of a machine as in the `hello`: torch, device, capability and cudnn; the last two of NVIDIA only."""


@dataclass(frozen=True)
class KnownBug:
    """One bug.

    Attributes:
        thread: owner/repository#number on GitHub.
        effect: what the kernel returns.
        operators: parts of the names that its operators have in an autograd graph.
        condition: the shapes and options with which it was seen.
        remedy: what to do.
        on: kind of device.
        direction: the pass that is wrong, empty if the thread does not tell.
        dtypes: dtypes of the operator, empty if it does not depend on them.
        torch, cudnn: first and last release.
        capability: compute capability of the GPU.
        device: pattern of the device's name.
        package: Python package that has the kernel.
    """

    thread: str
    effect: str
    operators: tuple[str, ...]
    condition: str
    remedy: str
    on: Literal["cuda", "cpu"] = "cuda"
    direction: Literal["", "forward", "backward"] = ""
    dtypes: tuple[str, ...] = ()
    torch: tuple[str, str] | None = None
    cudnn: tuple[int, int] | None = None
    capability: str = ""
    device: str = ""
    package: str = ""

    @property
    def url(self) -> str:
        repository, _, number = self.thread.partition("#")
        return f"https://github.com/{repository}/issues/{number}"

    def fits_machine(self, facts: Facts, on: str) -> bool:
        return (
            self.on == on
            and (self.torch is None or _within(facts.get("torch", ""), *self.torch))
            and (self.cudnn is None or self.cudnn[0] <= _number(facts.get("cudnn", "")) <= self.cudnn[1])
            and self.capability in ("", facts.get("capability"))
            and re.search(self.device, facts.get("device", "")) is not None
        )

    def fits_operator(self, op: str, direction: str, dtype: str) -> bool:
        return (
            any(part in op for part in self.operators)
            and self.direction in ("", direction)
            and (not self.dtypes or dtype in self.dtypes)
        )


KNOWN_BUGS = (
    KnownBug(
        "pytorch/pytorch#196678",
        "NaN in the gradient of the query",
        ("CudnnAttention",),
        "attention through cuDNN with an attn_mask, a sequence length of which 64 is left modulo 128, and rows whose"
        " logsumexp is below -88",
        "torch.backends.cuda.enable_cudnn_sdp(False)",
        direction="backward",
        dtypes=HALF,
        torch=("2.11", "2.13"),
        capability="9.0",
    ),
    KnownBug(
        "NVIDIA/cudnn-frontend#1072",
        "NaN in the gradients of key and value",
        ("CudnnAttention",),
        "attention through cuDNN with a single query and rows whose logsumexp is far below zero",
        "torch.backends.cuda.enable_cudnn_sdp(False)",
        direction="backward",
        dtypes=("bfloat16",),
        cudnn=(92600, 92699),
        capability="9.0",
    ),
    KnownBug(
        "huggingface/diffusers#9768",
        "NaN in gradients",
        ("CudnnAttention",),
        "attention through cuDNN, which torch 2.5.0 prefers",
        "update to torch 2.5.1, which does not prefer it, or torch.backends.cuda.enable_cudnn_sdp(False)",
        direction="backward",
        dtypes=HALF,
        torch=("2.5.0", "2.5.0"),
        cudnn=(90000, 99999),
    ),
    KnownBug(
        "pytorch/pytorch#119320",
        "NaN in gradients",
        ("EfficientAttention",),
        "attention through the memory-efficient kernel",
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        direction="backward",
        dtypes=("float32",),
        torch=("2.2", "2.4"),
    ),
    KnownBug(
        "pytorch/pytorch#163539",
        "wrong numbers",
        ("Convolution",),
        "three-dimensional convolutions through cuDNN 9.8 to 9.12",
        "update cuDNN to 9.13, or torch.backends.cudnn.enabled = False",
        dtypes=("bfloat16",),
        cudnn=(90800, 91299),
    ),
    KnownBug(
        "pytorch/pytorch#173793",
        "NaN",
        ("CompiledFunction",),
        "LayerNorm compiled by inductor, with inputs near the largest float32",
        "run the layer without torch.compile",
        direction="forward",
        dtypes=("float32",),
        torch=("2.6", "2.6"),
    ),
    KnownBug(
        "ultralytics/yolov5#7908",
        "NaN, or zeros",
        ("Convolution",),
        "convolutions on a GPU of the GTX 16 series, or on a Quadro T with the same chips",
        "train in float32, with autocast off",
        dtypes=("float16",),
        capability=WRONG_CAPABILITY,
        device=WRONG_ON,
    ),
    KnownBug(
        "Dao-AILab/flash-attention#2324",
        "NaN in gradients, from memory that was not written",
        ("FlashAttnVarlen",),
        "flash_attn_varlen_func with tensors that are longer than cu_seqlens says",
        "cut query, key and value to cu_seqlens[-1], or zero the gradients of the rest",
        direction="backward",
        dtypes=HALF,
        package="flash_attn",
    ),
    KnownBug(
        "fla-org/flash-linear-attention#892",
        "NaN in gradients, from memory that was not written",
        ("ChunkGatedDeltaRule",),
        "packed sequences that are longer than cu_seqlens says",
        "cut the tensors to cu_seqlens[-1], or update flash-linear-attention",
        direction="backward",
        package="fla",
    ),
    KnownBug(
        "unslothai/unsloth#3385",
        "NaN",
        ATTENTION,
        "FlashAttention 2 of ROCm on a Strix Halo (gfx1151)",
        "run attention in float16 or by torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        direction="forward",
        dtypes=("bfloat16",),
        device=r"Radeon 80[456]0S|Strix Halo|gfx1151",
        package="flash_attn",
    ),
    KnownBug(
        "pytorch/pytorch#127055",
        "NaN",
        ("FlashAttentionForCpu",),
        "attention on the CPU over long sequences, with a mask that excludes whole blocks of keys",
        "update to torch 2.4.1, or torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        on="cpu",
        direction="forward",
        torch=("2.3", "2.4.0"),
    ),
    KnownBug(
        "pytorch/pytorch#147303",
        "NaN in the gradient of the input",
        ("NativeBatchNorm",),
        "BatchNorm on the CPU of an input in channels_last",
        "call x.contiguous() before the layer, or run it in float32",
        on="cpu",
        direction="backward",
        dtypes=("float16",),
        torch=("2.6", "2.6"),
    ),
)


def of_machine(facts: Facts, on: str, packages: Iterable[str] | None = None) -> list[KnownBug]:
    """Returns the bugs of a device.

    Args:
        on: its kind, `cuda` or `cpu`.
        packages: the packages of the table that are installed; None if that is not known.
    """
    return [
        bug
        for bug in KNOWN_BUGS
        if bug.fits_machine(facts, on) and (not bug.package or packages is None or bug.package in packages)
    ]


def _within(version: str, first: str, last: str) -> bool:
    """Whether a release such as '2.13.0+cu130' is not before `first` and not after `last`, whose patches count too."""
    release, low, high = (_release(text) for text in (version, first, last))
    return bool(release) and low <= release and release[: len(high)] <= high


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1
