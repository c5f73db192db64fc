"""Threads about a run as a whole: checkpoints, resuming, ranks."""

from __future__ import annotations

from bench.cases.case import Case

CASES = (
    Case(
        "ultralytics/ultralytics#22189",
        "run/ultralytics_22189.py",
        "the checkpoint has no state of GradScaler, and a resumed run is unstable",
        ("scaler-not-restored", "checkpoint-incomplete"),
        (r"scaler", r"state_dict|save", r"load"),
    ),
    Case(
        "mosaicml/composer#1376",
        "run/composer_1376.py",
        "the scaler is created after the checkpoint was loaded",
        ("scaler-not-restored", "scaler-rebuilt"),
        (r"load_state_dict|load|restore",),
        limitation="both lives in one process",
    ),
    Case(
        "NVIDIA/apex#480",
        "run/apex_480.py",
        "loss spike after reload: the optimizer's state is lost",
        ("resume-mismatch",),
        (r"optimizer", r"load_state_dict|state"),
        limitation="a function stands for amp.initialize()",
    ),
    Case(
        "facebookresearch/fairscale#180",
        "run/fairscale_180.py",
        "each rank skips steps by itself",
        ("ranks-disagree",),
        (r"ShardedGradScaler|synchron|all.reduce",),
        ranks=2,
        limitation="2 ranks",
    ),
)
