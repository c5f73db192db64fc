"""Threads about what a value's dtype can hold: its range, its digits, its smallest number."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "huggingface/transformers#29285",
        "precision/transformers_29285.py",
        "the rotary embedding is computed in bfloat16",
        ("sensitive-op-in-half",),
        (r"float32", r"cos|sin|rotary|angle"),
    ),
    Case(
        "Modalities/modalities#462",
        "precision/modalities_462.py",
        "inverse frequencies are cast before they are multiplied with the positions",
        ("sensitive-op-in-half",),
        (r"float32", r"cos|sin|rotary|angle"),
    ),
    Case(
        "Lorenzo-Mazza/VersatIL#5",
        "precision/versatil_5.py",
        "LoRA matrices in bfloat16 do not move at a small learning rate",
        ("half-master-weights", "lost-updates"),
        (r"float32", r"round|lost|change"),
    ),
    Case(
        "matanbt/TROPT#8",
        "precision/tropt_8.py",
        "a soft prompt inherits float16, and Adam divides zero by zero",
        ("eps-underflow",),
        (r"eps", r"float32"),
    ),
    Case(
        "huggingface/transformers#10674",
        "precision/transformers_10674.py",
        "the sum of label smoothing overflows in the evaluation's float16",
        ("nonfinite-validation",),
        (r"float16", r"float32", r"sum"),
        limitation="A CPU gives Inf where the GPU divides it by another Inf.",
    ),
    Case(
        "MzeroMiko/VMamba#165",
        "precision/vmamba_165.py",
        "a part runs in float16 in the test phase only, and overflows",
        ("nonfinite-validation",),
        (r"float16", r"float32"),
    ),
    Case(
        "EuroEval/EuroEval#106",
        "precision/euroeval_106.py",
        "the validation loss is NaN in fp16 from the first evaluation on",
        ("nonfinite-validation",),
        (r"float16", r"float32|bfloat16"),
        limitation="The thread does not say where the NaN arises; here it is a sum over longer documents.",
    ),
    Case(
        "pytorch/pytorch#90342",
        "precision/pytorch_90342.py",
        "an overflow of a convolution stays in BatchNorm's running statistics",
        ("poisoned-buffers",),
        (r"running_(mean|var)", r"float32|overflow|Inf"),
    ),
    Case(
        "huggingface/transformers#19229",
        "precision/transformers_19229.py",
        "the sum of a feed-forward layer and its residual overflows float16",
        ("activation-overflow",),
        (r"65504|overflow", r"clamp|float32|bfloat16"),
    ),
    Case(
        "NVIDIA-NeMo/Automodel#2826",
        "precision/automodel_2826.py",
        "rows of padding are masked entirely, and their softmax is NaN",
        ("masked-row-nan",),
        (r"softmax", r"row", r"mask"),
    ),
    Case(
        "OpenRLHF/OpenRLHF#634",
        "precision/openrlhf_634.py",
        "log-probabilities and KL of PPO are computed from bfloat16 logits in bfloat16",
        ("loss-in-half", "sensitive-op-in-half"),
        (r"float32", r"float\(\)|log_softmax|logits"),
    ),
)
