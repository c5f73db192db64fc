"""Threads about what is kept or computed in half precision: weights, state, loss, reduction."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "Modalities/modalities#464",
        "low_precision/modalities_464.py",
        "cross entropy in bfloat16",
        ("loss-in-half",),
        (r"float32|\.float\(\)", r"logits|before|output"),
        limitation="a functional call with bfloat16 weights stands for FSDP2",
    ),
    Case(
        "vllm-project/speculators#788",
        "low_precision/speculators_788.py",
        "KL divergence in bfloat16",
        ("loss-in-half",),
        (r"float32|\.float\(\)",),
        limitation="bfloat16 weights by hand stand for FSDP2",
    ),
    Case(
        "workofart/ml-by-hand#85",
        "low_precision/ml_by_hand_85.py",
        "bfloat16 weights without a float32 master copy do not move",
        ("half-master-weights", "lost-updates"),
        (r"float32", r"master|copy|autocast"),
        limitation="torch instead of the author's own library",
    ),
    Case(
        "meta-pytorch/torchtune#2254",
        "low_precision/torchtune_2254.py",
        "very bad convergence of a model that is wholly bfloat16",
        ("half-master-weights", "lost-updates"),
        (r"float32",),
        limitation="a small model from scratch instead of Llama 3.1 8B",
    ),
    Case(
        "d8ahazard/sd_dreambooth_extension#1417",
        "low_precision/sd_dreambooth_extension_1417.py",
        "an EMA in bfloat16 never changes",
        ("lost-updates",),
        (r"float32", r"EMA|average|copy|averaged_model"),
    ),
    Case(
        "NVIDIA-NeMo/Automodel#2248",
        "low_precision/automodel_2248.py",
        "AdamW's moments in bfloat16",
        ("half-optimizer-state", "half-master-weights"),
        (r"float32", r"state|moment"),
    ),
    Case(
        "huggingface/sentence-transformers#3793",
        "low_precision/sentence_transformers_3793.py",
        "index put with float32 and bfloat16",
        ("unsupported-op",),
        (r"float32|\.float\(\)", r"bfloat16"),
    ),
    Case(
        "pytorch/pytorch#106395",
        "low_precision/pytorch_106395.py",
        "gradients are reduced in bfloat16",
        ("half-reduction",),
        (r"float32", r"reduc"),
        ranks=2,
        limitation="2 ranks instead of 384, so nothing becomes unstable; DDP instead of FSDP",
    ),
    Case(
        "deepspeedai/DeepSpeed#2071",
        "low_precision/deepspeed_2071.py",
        "gradients of a bfloat16 run are reduced in float16",
        ("half-reduction",),
        (r"float32", r"reduc"),
        ranks=2,
        limitation="an all-reduce by hand instead of the engine",
    ),
)
