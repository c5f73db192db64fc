"""Faults in the order of calls: scale, backward, unscale, clip, step, update, reset, schedule."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces.slots import CLIP_HELPERS, CLIPS, SCALED

_UNSCALE = "$scaler.$m_unscale($opt)"


def _clipped_early(name: str) -> Spelling:
    return Spelling(
        bad={"unscale": CLIPS[name], "clip": _UNSCALE},
        good={"unscale": _UNSCALE, "clip": CLIPS[name]},
        alike={"unscale": CLIPS[name].replace("$limit", "(1000.0 * $scale_now)"), "clip": _UNSCALE}
        if name in ("torch", "helper")
        else None,
        code=CLIP_HELPERS.get(name, ""),
    )


CLIP_BEFORE_UNSCALE = Fault(
    accepted=("clip-before-unscale",),
    spellings={name: _clipped_early(name) for name in ("torch", "helper", "foreach", "inline", "value")},
    related=("gradient-underflow", "stagnation", "gradient-spike"),
    precisions=SCALED,
    optimizers=("sgd", "own", "adamw"),
    place="line",
)

GRADIENTS_NOT_RESET = Fault(
    accepted=("gradients-not-reset",),
    spellings={
        "missing": Spelling({"reset": "pass"}, alike={"reset": "for $p in $model.parameters():\n    $p.grad = None"}),
        "copy": Spelling(
            {"reset": "copy.deepcopy($model).zero_grad()"}, alike={"reset": "copy.copy($model).zero_grad()"}
        ),
        "foreach": Spelling(
            {"reset": "torch._foreach_zero_([$p.grad.clone() for $p in $model.parameters() if $p.grad is not None])"},
            alike={"reset": "torch._foreach_zero_([$p.grad for $p in $model.parameters() if $p.grad is not None])"},
        ),
        "helper": Spelling(
            {"reset": "$wipe($model.parameters())"},
            {"reset": "$clear($model.parameters())"},
            code="""
def $wipe(parameters):
    for p in parameters:
        if p.grad is not None and not torch.isfinite(p.grad).all():
            p.grad = None


def $clear(parameters):
    for p in parameters:
        p.grad = None
""",
        ),
        "data": Spelling(
            {"reset": "for $p in $model.parameters():\n    if $p.grad is not None: $p.grad.data = $p.grad.data * 1.0"},
            {
                "reset": "for $p in $model.parameters():\n"
                "    if $p.grad is not None: $p.grad.data = torch.zeros_like($p.grad.data)"
            },
        ),
    },
    related=("mixed-scale-gradients", "gradient-spike", "nonfinite-gradient", "scale-collapse"),
    without_styles=("functional",),
    place="line",
    place_slots=("backward", "step", "unscale"),
)

LOSS_NOT_SCALED = Fault(
    accepted=("loss-not-scaled",),
    spellings={
        "raw": Spelling({"backward": "@back($loss)"}, alike={"backward": "@back($loss * $scale_now)"}),
        "discarded": Spelling({"backward": "$scaler.$m_scale($loss)\n@back($loss)"}),
        "helper": Spelling(
            {"backward": "@back($prepared($loss, 1.0))"},
            {"backward": "@back($prepared($scaler.$m_scale($loss), 1.0))"},
            {"backward": "@back($prepared($loss, $scale_now))"},
            code="def $prepared(value, weight):\n    return value * weight",
        ),
        "added": Spelling(
            {"backward": "@back($loss + 0.0 * $scaler.$m_scale($loss.detach()))"},
            alike={"backward": "@back($scaler.$m_scale($loss + 0.0))"},
        ),
        "function": Spelling(
            {"backward": "@back($Pass.apply($loss))"},
            {"backward": "@back($scaler.$m_scale($Pass.apply($loss)))"},
            {"backward": "@back($Pass.apply($scaler.$m_scale($loss)))"},
            code="""
class $Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, upstream):
        return upstream
""",
        ),
    },
    related=("gradient-underflow", "stagnation", "gradient-spike"),
    precisions=SCALED,
    place="line",
    place_slots=("step", "unscale"),
    ends=True,
)

_MANUAL = """
with torch.no_grad():
    for $p in $model.parameters():
        if $p.grad is not None:
            <<$p.sub_(0.001 * $p.grad)~~$p -= 0.001 * $p.grad>>
"""

_MANUAL_FOREACH = """
with torch.no_grad():
    $some = [$p for $p in $model.parameters() if $p.grad is not None]
    torch._foreach_add_($some, [$p.grad for $p in $some], alpha=-0.001)
"""


def _stepped_past(step: str, code: str = "") -> Spelling:
    """The scaler is left out; the twin takes the same step on gradients without the scale."""
    return Spelling(
        bad={"unscale": "", "clip": "", "step": step, "update": ""},
        good={"unscale": _UNSCALE, "clip": "", "step": step},
        code=code,
    )


GRADIENTS_NOT_UNSCALED = Fault(
    accepted=("gradients-not-unscaled",),
    spellings={
        "step": Spelling({"unscale": "", "clip": "", "step": "$opt.step()", "update": ""}, {"clip": ""}),
        "alias": Spelling(
            {"unscale": "", "clip": "", "step": "$take = $opt.step\n$take()", "update": ""}, {"clip": ""}
        ),
        "inline": _stepped_past(_MANUAL),
        "foreach": _stepped_past(_MANUAL_FOREACH),
        "helper": Spelling(
            {"unscale": "", "clip": "", "step": "$move($opt)", "update": ""},
            {"clip": ""},
            code="$move = lambda which: which.step()",
        ),
    },
    related=(
        "clip-before-unscale",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-weights",
        "scale-collapse",
        "gradient-spike",
        "diverged",
    ),
    precisions=SCALED,
    place="line",
    ends=True,
)

_PENALTIES = {
    "squares": "sum($p.square().sum() for $p in $model.parameters())",
    "foreach": "torch.stack(torch._foreach_norm(list($model.parameters()))).sum()",
    "absolute": "torch.cat([$p.flatten() for $p in $model.parameters()]).abs().sum()",
}


def _penalty(text: str) -> Spelling:
    backward = f"$penalty = 1e-4 * {text}\n$scaler.$m_scale($penalty).backward()"
    return Spelling(
        {"unscale": f"{_UNSCALE}\n{backward}"},
        {"unscale": f"{backward}\n{_UNSCALE}"},
        {"unscale": f"{_UNSCALE}\n" + backward.replace("$scaler.$m_scale($penalty)", "$penalty")},
    )


MIXED_SCALE = Fault(
    accepted=("mixed-scale-gradients",),
    spellings={name: _penalty(text) for name, text in _PENALTIES.items()},
    related=("gradient-spike", "diverged", "nonfinite-loss", "nonfinite-gradient"),
    precisions=SCALED,
    without_styles=("functional", "two-optimizers"),
    place="line",
)

UPDATE_BETWEEN = Fault(
    accepted=("update-between-optimizers",),
    spellings={
        "update": Spelling({"step": "$scaler.$m_step($opt)\n$scaler.$m_update()", "update": ""}),
        "helper": Spelling(
            {"step": "$scaler.$m_step($opt)\n$both($scaler)", "update": ""},
            code="def $both(which):\n    which.$m_update()",
        ),
    },
    related=("overflow-storm", "lopsided-step", "mixed-scale-gradients", "gradients-not-unscaled"),
    precisions=("fp16",),
    styles=("two-optimizers",),
    place="line",
)

_HALVED = """
for $group in $opt.param_groups:
    $group["lr"] = $group["lr"] * 0.97
"""

_HIGH = '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**38)'
_GATED = "if $scale_now < 2.0**20:\n"


def _schedule(make: str, step: str) -> Spelling:
    text = step.strip("\n").replace("\n", "\n    ")
    return Spelling(
        {"make_scaler": _HIGH, "make_schedule": make, "schedule": step},
        {"make_scaler": _HIGH, "make_schedule": make, "schedule": f"{_GATED}    {text}"},
    )


SCHEDULER_AHEAD = Fault(
    accepted=("scheduler-ahead",),
    spellings={
        "torch": _schedule("$sched = torch.optim.lr_scheduler.CosineAnnealingLR($opt, $steps)", "$sched.step()"),
        "lambda": _schedule(
            "$sched = torch.optim.lr_scheduler.LambdaLR($opt, lambda n: 1 / (1 + 0.05 * n))", "$sched.step()"
        ),
        "by-hand": _schedule("", _HALVED),
    },
    related=("overflow-storm", "scale-collapse"),
    precisions=("fp16",),
    courses=("constant",),
    without_styles=("two-optimizers",),
)

FAULTS = {
    "clip-before-unscale": CLIP_BEFORE_UNSCALE,
    "gradients-not-reset": GRADIENTS_NOT_RESET,
    "loss-not-scaled": LOSS_NOT_SCALED,
    "gradients-not-unscaled": GRADIENTS_NOT_UNSCALED,
    "mixed-scale-gradients": MIXED_SCALE,
    "update-between-optimizers": UPDATE_BETWEEN,
    "scheduler-ahead": SCHEDULER_AHEAD,
}
