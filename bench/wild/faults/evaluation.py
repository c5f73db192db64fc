"""Faults of what a program computes beside its training: validation."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces.slots import EVALUATE

_WITHOUT_EVAL = EVALUATE.replace("    $model.eval()\n", "").replace("    $model.train()\n", "")


def _in_evaluation(bad: str, good: str, alike: str | None = None, code: str = "") -> Spelling:
    """A branch of the network that only evaluation takes."""
    branch = "if not self.training:\n    {}"
    evaluate = {"evaluate": EVALUATE}
    harmless = evaluate | {"mid": branch.format(alike)} if alike else None
    return Spelling(evaluate | {"mid": branch.format(bad)}, evaluate | {"mid": branch.format(good)}, harmless, code)


NONFINITE_VALIDATION = Fault(
    accepted=("nonfinite-validation",),
    spellings={
        "ratio": _in_evaluation(
            "$h = $h / ($h - $h)", "$h = $h / ($h.abs().max() + 1.0)", "$h = torch.where($h > 1e9, -float('inf'), $h)"
        ),
        "log": _in_evaluation("$h = $h + (-1 - $h.abs()).log()", "$h = $h + (1 + $h.abs()).log()"),
        "mask": _in_evaluation(
            "$h = $h + torch.softmax(torch.full_like($h, -float('inf')), -1)",
            "$h = $h + torch.softmax($h.masked_fill($h < $h.mean(-1, keepdim=True), -float('inf')), -1)",
        ),
        "helper": _in_evaluation(
            "$h = $calibrated($h, 0)",
            "$h = $calibrated($h, 2)",
            code="def $calibrated(value, count):\n    return value * count / torch.tensor(float(count))",
        ),
        "inplace": _in_evaluation("$h = $h.clone().sub_($h).div_(0.0)", "$h = $h.clone().sub_($h).div_(2.0)"),
        "no-grad": Spelling(
            {"evaluate": _WITHOUT_EVAL, "mid": "if not torch.is_grad_enabled():\n    $h = $h * float('inf') * 0.0"},
            {"evaluate": _WITHOUT_EVAL, "mid": "if not torch.is_grad_enabled():\n    $h = $h * 1.0"},
        ),
    },
    courses=("constant", "late"),
    place="module",
    numbers_change=False,
)

FAULTS = {"nonfinite-validation": NONFINITE_VALIDATION}
