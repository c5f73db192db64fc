"""Threads about kernels that return NaN for finite inputs; here Functions with the same mistake."""

from __future__ import annotations

from bench.cases.case import Case

PLANTED = "A Function with the mistake that the thread found stands for the GPU's kernel."

CASES = (
    Case(
        "pytorch/pytorch#196678",
        "kernels/pytorch_196678.py",
        "cuDNN's attention backward returns NaN for grad_q at finite inputs",
        ("kernel-nan", "nonfinite-gradient"),
        (r"CudnnAttention", r"finite"),
        limitation=PLANTED,
    ),
    Case(
        "unslothai/unsloth#3385",
        "kernels/unsloth_3385.py",
        "a bfloat16 attention kernel returns NaN in the forward pass at finite inputs",
        ("kernel-nan", "nonfinite-loss"),
        (r"FlashAttention", r"finite"),
        limitation=PLANTED,
    ),
    Case(
        "Dao-AILab/flash-attention#2324",
        "kernels/flash_attention_2324.py",
        "gradients of the padding are uninitialised memory",
        ("kernel-nan", "nonfinite-gradient"),
        (r"VarlenAttention", r"finite"),
        limitation=PLANTED + " NaN stands for what the memory held.",
    ),
    Case(
        "tile-ai/tilelang#2461",
        "kernels/tilelang_2461.py",
        "the backward pass reads log-sum-exps that the forward pass did not write",
        ("kernel-nan", "nonfinite-gradient"),
        (r"\bAttention", r"finite"),
        limitation=PLANTED + " NaN stands for what the memory held.",
    ),
)
