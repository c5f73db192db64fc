"""Threads about the loop around the model: scaler, checkpoints, reductions, sampling."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "FlyEgle/imageclassification#1",
        "training/imageclassification_1.py",
        "optimizer.step() runs again after scaler.step(optimizer)",
        ("gradients-not-unscaled", "gradients-not-reset", "nonfinite-weights"),
        (r"scaler\.step", r"optimizer\.step|step\(\)"),
    ),
    Case(
        "facebookresearch/co-tracker#101",
        "training/co_tracker_101.py",
        "a resumed training restores the optimizer and not the GradScaler",
        ("scaler-not-restored",),
        (r"scaler", r"state_dict|checkpoint"),
        limitation="The training resumes in the same process.",
    ),
    Case(
        "deepspeedai/DeepSpeed#7188",
        "training/deepspeed_7188.py",
        "a buffer is handed out again while it is being reduced",
        ("broken-in-reduction",),
        (r"reduc", r"finite", r"overlap"),
        ranks=2,
        limitation="The buffer is refilled before the copy, where streams race on a GPU.",
    ),
    Case(
        "deepspeedai/DeepSpeed#8061",
        "training/deepspeed_8061.py",
        "the reduction reads a bucket before all gradients have been copied into it",
        ("broken-in-reduction",),
        (r"reduc", r"finite", r"overlap"),
        ranks=2,
        limitation="The copy comes after the reduction, where streams race on a GPU.",
    ),
    Case(
        "huggingface/transformers#31267",
        "training/transformers_31267.py",
        "log-probabilities of a bfloat16 sampler differ from those of the training",
        ("rollout-mismatch",),
        (r"sampl|rollout|generat", r"dtype|precision|float32|bfloat16"),
    ),
)
