"""Threads about calls in the wrong order: scale, unscale_, clip, step, update, zero_grad."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "pytorch/pytorch#74739",
        "call_order/pytorch_74739.py",
        "ValueError: Attempting to unscale FP16 gradients",
        ("half-master-weights",),
        (r"float32", r"autocast"),
    ),
    Case(
        "pytorch/examples#1196",
        "call_order/examples_1196.py",
        "gradients are clipped before unscale_()",
        ("clip-before-unscale",),
        (r"unscale_", r"before"),
    ),
    Case(
        "huggingface/accelerate#641",
        "call_order/accelerate_641.py",
        "unscale_() and clip in each micro-batch of an accumulated step",
        ("mixed-scale-gradients",),
        (r"unscale_", r"once|accumulat|last micro|micro-batch"),
    ),
    Case(
        "Haian-Jin/LVSM#19",
        "call_order/lvsm_19.py",
        "update() is left out with a skipped step: unscale_() has already been called",
        ("mixed-scale-gradients",),
        (r"update\(\)",),
    ),
    Case(
        "PaddlePaddle/Paddle#67895",
        "call_order/paddle_67895.py",
        "gradients are never cleared: one overflow stays for ever",
        ("gradients-not-reset",),
        (r"zero_grad",),
        limitation="torch instead of Paddle",
    ),
    Case(
        "huggingface/accelerate#328",
        "call_order/accelerate_328.py",
        "No inf checks were recorded: the optimizer has the parameters of another model",
        ("no-gradients",),
        (r"optimizer", r"after|move|\.to\("),
        limitation="a copy of the model stands for its move to a GPU",
    ),
    Case(
        "open-mmlab/mmsegmentation#3230",
        "call_order/mmsegmentation_3230.py",
        "No inf checks were recorded: the loss is a new tensor without a graph",
        ("no-gradients",),
        (r"torch\.tensor|detach|graph|\.item\(\)",),
    ),
    Case(
        "nerfstudio-project/nerfstudio#1919",
        "call_order/nerfstudio_1919.py",
        "No inf checks were recorded: one optimizer gets no gradient in some steps",
        ("no-gradients",),
        (r"only|skip|if ",),
    ),
    Case(
        "huggingface/accelerate#113",
        "call_order/accelerate_113.py",
        "gradients are unscaled twice, through a wrapper and without it",
        ("mixed-scale-gradients", "loss-not-scaled"),
        (r"unscale_", r"twice|again|second"),
    ),
    Case(
        "nerfstudio-project/nerfacc#307",
        "call_order/nerfacc_307.py",
        "the loss is scaled, and the optimizer steps without the scaler",
        ("gradients-not-unscaled",),
        (r"scaler\.step",),
    ),
    Case(
        "ashawkey/stable-dreamfusion#158",
        "call_order/stable_dreamfusion_158.py",
        "a custom backward() ignores the loss scale",
        ("loss-not-scaled",),
        (r"scale", r"backward|SpecifyGradient"),
        limitation="no diffusion model",
    ),
)
