"""Threads about autocast: where it begins and ends, what it keeps, and what leaves its dtype."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "pytorch/pytorch#120376",
        "autocast/pytorch_120376.py",
        "the whole training loop runs inside autocast, and bfloat16 seems to learn worse",
        ("autocast-scope",),
        (r"forward", r"backward|step"),
    ),
    Case(
        "X-GenGroup/Flow-Factory#186",
        "autocast/flow_factory_186.py",
        "autocast's copies of the weights are older than the optimizer's steps and the swap of weights",
        ("autocast-scope",),
        (r"cop(y|ies)|cast", r"forward", r"old|stale|before"),
    ),
    Case(
        "NVIDIA/TransformerEngine#70",
        "autocast/transformerengine_70.py",
        "a Function casts its weight without gradients and returns none for it",
        ("no-gradients",),
        (r"weight", r"Function|custom"),
    ),
    Case(
        "facebookresearch/fairscale#1199",
        "autocast/fairscale_1199.py",
        "activation checkpointing recomputes in float16 a forward pass in bfloat16",
        ("dtype-switched",),
        (r"float16", r"bfloat16", r"recomput|checkpoint|again"),
        limitation="On a GPU autocast() without a dtype is float16; the program names float16.",
    ),
    Case(
        "NVIDIA/TransformerEngine#787",
        "autocast/transformerengine_787.py",
        "a checkpoint recomputes its block outside of autocast and fails",
        ("unsupported-op", "dtype-switched"),
        (r"autocast", r"backward|recomput|checkpoint"),
        limitation="A layer that computes in bfloat16 by itself stands for the FP8 layer.",
    ),
    Case(
        "pytorch/pytorch#159359",
        "autocast/pytorch_159359.py",
        "CheckpointError: the recomputation skips a cast that the forward pass had",
        ("unsupported-op", "dtype-switched"),
        (r"checkpoint|recomput", r"float32", r"bfloat16"),
        limitation="A hook that casts the inputs stands for that of FSDP2.",
    ),
    Case(
        "pytorch/pytorch#153044",
        "autocast/pytorch_153044.py",
        "torch.compile runs the backward pass of a float32 part in float16",
        ("dtype-switched",),
        (r"compile", r"backward_pass_autocast|backward"),
    ),
    Case(
        "pytorch/ao#4616",
        "autocast/ao_4616.py",
        "a Function multiplies a bfloat16 gradient with a float32 weight in its backward pass",
        ("unsupported-op",),
        (r"custom_bwd|cast|\.to\(", r"bfloat16|float"),
    ),
    Case(
        "pytorch/pytorch#47906",
        "autocast/pytorch_47906.py",
        "an operator gets features in float16 and boxes in float32, and custom_fwd does not cast them",
        ("unsupported-op",),
        (r"custom_fwd", r"cast_inputs|float32"),
        limitation="A batched product of two dtypes stands for the CUDA extension.",
    ),
    Case(
        "AgileRL/AgileRL#623",
        "autocast/agilerl_623.py",
        "float32 adapters cast each layer's input up, and autocast casts it down again",
        ("activation-casts",),
        (r"float32", r"cast"),
        limitation="The memory that it costs is the GPU's.",
    ),
    Case(
        "pytorch/pytorch#188955",
        "autocast/pytorch_188955.py",
        "rms_norm promotes bfloat16 activations to float32 and the next layer casts them back",
        ("activation-casts",),
        (r"float32", r"cast"),
        limitation="autocast leaves rms_norm alone on a CPU; the program's norm promotes as CUDA's policy does.",
    ),
)
