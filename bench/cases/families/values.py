"""Threads about values: overflow, NaN, masks, labels, eps."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "huggingface/transformers#5651",
        "values/transformers_5651.py",
        "T5 in float16: wo of the feed-forward layer exceeds 65504",
        ("activation-overflow",),
        (r"bfloat16", r"float32|clamp", r"wo\b|DenseReluDense"),
        limitation="scaled weights stand for the pretrained ones",
    ),
    Case(
        "huggingface/transformers#17306",
        "values/transformers_17306.py",
        "finfo.min twice in an attention mask: a row of -inf, NaN after softmax",
        ("masked-row-nan",),
        (r"mask", r"float32|boolean|clamp|finfo"),
        limitation="shifted weights stand for the pretrained ones",
    ),
    Case(
        "pytorch/pytorch#26098",
        "values/pytorch_26098.py",
        "a random key_padding_mask masks every key of a row",
        ("masked-row-nan",),
        (r"mask", r"row", r"finite|finfo|negative|-inf"),
        limitation="attention written by hand, because torch has since repaired its own",
    ),
    Case(
        "pytorch/pytorch#88474",
        "values/pytorch_88474.py",
        "a skipped step leaves NaN in the running statistics of BatchNorm",
        ("poisoned-buffers",),
        (r"running|BatchNorm|statistic", r"restore|reset|load"),
    ),
    Case(
        "pytorch/pytorch#115500",
        "values/pytorch_115500.py",
        "BatchNorm is NaN because autocast converts an input beyond 65504 to float16",
        ("activation-overflow", "nonfinite-loss", "poisoned-buffers"),
        (r"float16", r"65504|overflow", r"input|argument"),
    ),
    Case(
        "huggingface/trl#6668",
        "values/trl_6668.py",
        "loss 0.0: truncation leaves no label in the batch",
        ("masked-labels",),
        (r"label|target", r"truncat|max_length|length"),
        limitation="a program instead of SFTTrainer, which hides the NaN in its log in the same way",
    ),
    Case(
        "afiaka87/glide-finetune#5",
        "values/glide_finetune_5.py",
        "Adam's eps of 1e-8 is 0 in float16: NaN after one step",
        ("eps-underflow",),
        (r"eps", r"1e-4|float32"),
    ),
    Case(
        "NVIDIA/apex#1052",
        "values/apex_1052.py",
        "masked_fill(-1e9) on float16 scores raises",
        ("unsupported-op",),
        (r"overflow|65504", r"finfo|inf\b|-1e4"),
    ),
)
