"""Faults that make NaN or Inf: in a gradient, the loss, a weight, an activation, a buffer or the optimizer."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces import courses

_EXPLAINED = ("scale-collapse", "nonfinite-weights", "nonfinite-loss", "nonfinite-gradient")

_ROOT = """
class $Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, eps):
        root = (value + eps).sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, upstream):
        (root,) = ctx.saved_tensors
        return upstream / (2 * root), None
"""

_ZERO = "$gap = $h - $h.detach()\n"
"""The distance of a thing to itself: zero, and differentiable."""


NONFINITE_GRADIENT = Fault(
    accepted=("nonfinite-gradient",),
    spellings={
        "sqrt": Spelling(
            {"mid": _ZERO + "$h = $h + torch.sqrt($gap * $gap)"},
            {"mid": _ZERO + "$h = $h + torch.sqrt($gap * $gap + 1e-6)"},
            {"mid": _ZERO + "$h = $h + torch.sqrt(torch.where($gap == 0, 1.0, $gap * $gap))"},
        ),
        "power": Spelling(
            {"mid": _ZERO + "$h = $h + ($gap**2) ** 0.5"}, {"mid": _ZERO + "$h = $h + ($gap**2 + 1e-6) ** 0.5"}
        ),
        "helper": Spelling(
            {"mid": _ZERO + "$h = $h + $length($gap, 0.0)"},
            {"mid": _ZERO + "$h = $h + $length($gap, 1e-6)"},
            code="def $length(value, eps):\n    return value.square().add(eps).pow(0.5)",
        ),
        "foreach": Spelling(
            {"mid": _ZERO + "$h = $h + torch._foreach_sqrt([$gap * $gap])[0]"},
            {"mid": _ZERO + "$h = $h + torch._foreach_sqrt([$gap * $gap + 1e-6])[0]"},
        ),
        "function": Spelling(
            {"mid": _ZERO + "$h = $h + $Root.apply($gap * $gap, 0.0)"},
            {"mid": _ZERO + "$h = $h + $Root.apply($gap * $gap, 1e-6)"},
            code=_ROOT,
        ),
        "where": Spelling(
            {"mid": _ZERO + "$h = $h + torch.where($gap.abs() > 0, $gap / $gap, $gap)"},
            {"mid": _ZERO + "$h = $h + torch.where($gap.abs() > 0, $gap / ($gap + 0.01), $gap)"},
        ),
    },
    related=_EXPLAINED,
    place="module",
)

NONFINITE_LOSS = Fault(
    accepted=("nonfinite-loss",),
    spellings={
        "mean": Spelling(
            {"after_loss": "$kept = ($y < 0).sum()\n$loss = $loss * $y.numel() / $kept"},
            {"after_loss": "$kept = ($y < 0).sum()\n$loss = $loss * $y.numel() / ($y.numel() + $kept)"},
        ),
        "log": Spelling(
            {"after_loss": "$loss = $loss - 0.01 * torch.log(F.relu($loss.detach() - $loss))"},
            {"after_loss": "$loss = $loss - 0.01 * torch.log(F.relu($loss.detach() - $loss) + 1e-3)"},
        ),
        "exp": Spelling(
            {"after_loss": "$loss = (200 * $loss + 200).exp()"}, {"after_loss": "$loss = (0.1 * $loss).exp()"}
        ),
        "helper": Spelling(
            {"after_loss": "$loss = $balance($loss, [0.0, 0.0])"},
            {"after_loss": "$loss = $balance($loss, [0.5, 0.5])"},
            code="def $balance(value, weights):\n    return value * weights[0] / torch.tensor(weights).sum()",
        ),
        "foreach": Spelling(
            {"after_loss": "$loss = $loss + torch._foreach_log([torch.zeros(())])[0]"},
            {"after_loss": "$loss = $loss + torch._foreach_log([torch.ones(())])[0]"},
        ),
    },
    related=_EXPLAINED,
    place="line",
    place_slots=("backward",),
)

MASKED_LABELS = Fault(
    accepted=("masked-labels",),
    spellings={
        "full": Spelling({"data": "$y = torch.full_like($y, -100)"}),
        "where": Spelling(
            {"data": "$y = torch.where($y >= 0, -100, $y)"}, {"data": "$y = torch.where($y < 0, -100, $y)"}
        ),
        "fill": Spelling({"data": "$y[:] = -100"}, alike={"data": "$y[:1] = -100"}),
    },
    related=("nonfinite-loss", "stagnation", "gradient-spike"),
)

NONFINITE_INPUT = Fault(
    accepted=("nonfinite-loss", "poisoned-buffers"),  # one skipped batch with Inf leaves running averages broken
    spellings={
        "nan": Spelling({"data": '$x[0] = float("nan")'}),
        "normalised": Spelling(
            {"data": "$x = ($x - $x.mean()) / ($x - $x).std()"},
            {"data": "$x = ($x - $x.mean()) / ($x - $x.mean()).std()"},
        ),
        "inf": Spelling({"data": "$x = $x / torch.zeros(())"}, {"data": "$x = $x / torch.ones(())"}),
    },
    related=_EXPLAINED,
    archs=("mlp", "conv", "rnn", "residual", "custom"),
)

_FIRST = "next(iter($model.parameters()))"
_LAST = "list($model.parameters())[-1]"

NONFINITE_WEIGHTS = Fault(
    accepted=("nonfinite-weights",),
    spellings={
        "write": Spelling({"after_step": f'{_FIRST}.data.view(-1)[3] = float("nan")'}),
        "last": Spelling({"after_step": f'{_LAST}.data.view(-1)[0] = float("nan")'}),  # mostly a bias
        "normalise": Spelling(
            {"after_step": f"with torch.no_grad():\n    {_FIRST}.div_({_FIRST}.sub({_FIRST}).norm())"},
            {"after_step": ""},
            {"after_step": f"with torch.no_grad():\n    {_FIRST}.div_({_FIRST}.norm() / {_FIRST}.norm())"},
        ),
        "foreach": Spelling(
            {
                "after_step": "with torch.no_grad():\n    torch._foreach_div_(list($model.parameters()), "
                "[torch.zeros(())] * len(list($model.parameters())))"
            },
        ),
        "copy": Spelling(
            {"after_step": f'{_FIRST}.data.copy_(torch.full_like({_FIRST}, float("inf")))'},
            alike={"after_step": f"{_FIRST}.data.copy_({_FIRST}.clone())"},
        ),
    },
    related=("nonfinite-loss", "scale-collapse", "nonfinite-gradient"),
    place="weight",
    courses=("once", *courses.PERSISTENT),
)

_LOUD = """
class $Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, gain):
        ctx.gain = gain
        return value * gain

    @staticmethod
    def backward(ctx, upstream):
        return upstream * ctx.gain, None
"""

ACTIVATION_OVERFLOW = Fault(
    accepted=("activation-overflow",),
    spellings={
        "multiply": Spelling(
            {"mid": "$h = $h * 3e6"},
            {"mid": "$h = $h * 1.0"},
            {"mid": "$h = ($h.float() * 3e6 / 3e6).to($h.dtype)"},
        ),
        "inplace": Spelling({"mid": "$h = $h.clone().mul_(4e6)"}, {"mid": "$h = $h.clone().mul_(1.0)"}),
        "exp": Spelling({"mid": "$h = $h + ($h.abs() + 12).exp()"}, {"mid": "$h = $h + (-$h.abs() - 2).exp()"}),
        "power": Spelling({"mid": "$h = $h + (30 * $h + 30) ** 4"}, {"mid": "$h = $h + (0.3 * $h) ** 4"}),
        "function": Spelling({"mid": "$h = $Loud.apply($h, 5e6)"}, {"mid": "$h = $Loud.apply($h, 1.0)"}, code=_LOUD),
        "foreach": Spelling(
            {"mid": "$h = torch._foreach_mul([$h], 2e6)[0]"}, {"mid": "$h = torch._foreach_mul([$h], 1.0)[0]"}
        ),
    },
    related=(*_EXPLAINED, "overflow-storm"),
    precisions=("fp16", "own-scaler"),
    place="module",
)

_MASK = "$blocked = torch.zeros_like($h, dtype=torch.bool)\n$blocked[0] = {}\n"


def _masked(text: str, code: str = "") -> Spelling:
    return Spelling(
        {"mid": _MASK.format("True") + text},
        {"mid": _MASK.format("False") + text},
        {"mid": _MASK.format("True") + "$blocked[..., 0] = False\n" + text},
        code=code,
    )


MASKED_ROW = Fault(
    accepted=("masked-row-nan",),
    spellings={
        "fill": _masked('$h = $h * (1 + torch.softmax($h.masked_fill($blocked, float("-inf")), -1))'),
        "where": _masked('$h = $h + F.softmax(torch.where($blocked, float("-inf"), $h), dim=-1)'),
        "by-hand": _masked(
            "$power = $h.float().exp() * ~$blocked\n$h = $h + ($power / $power.sum(-1, keepdim=True)).to($h.dtype)"
        ),
        "helper": _masked(
            "$h = $h + $weigh($h, $blocked)",
            'def $weigh(score, hidden):\n    return score.masked_fill(hidden, -float("inf")).softmax(-1)',
        ),
        "log": _masked('$h = $h + F.log_softmax($h.masked_fill($blocked, float("-inf")), -1).exp()'),
    },
    related=(*_EXPLAINED, "activation-overflow"),
    place="module",
)

EPS_UNDERFLOW = Fault(
    accepted=("eps-underflow",),
    spellings={
        "zero": Spelling({"make_optimizer": "$opt = $make_without_eps"}),
        "group": Spelling({"after_build": 'for $group in $opt.param_groups: $group["eps"] = 0.0'}),
        "tiny": Spelling({"after_build": 'for $group in $opt.param_groups: $group["eps"] = 1e-60'}),
    },
    related=("nonfinite-weights", "nonfinite-loss", "nonfinite-gradient"),
    archs=("embedding", "transformer"),
    optimizers=("adamw", "fused"),
    courses=("constant",),
    without_styles=("two-optimizers",),
)

POISONED_BUFFERS = Fault(
    accepted=("poisoned-buffers",),
    spellings={
        "inf": Spelling({"data": '$x[0, 0] = float("inf")'}),
        "scaled": Spelling({"data": "$x = $x * 1e38 * 10"}, {"data": "$x = $x * 1.0"}),
    },
    related=("nonfinite-loss", "nonfinite-gradient"),
    precisions=("fp16", "own-scaler"),
    archs=("residual",),
    courses=("once",),
)

FAULTS = {
    "nonfinite-gradient": NONFINITE_GRADIENT,
    "nonfinite-loss": NONFINITE_LOSS,
    "masked-labels": MASKED_LABELS,
    "nonfinite-input": NONFINITE_INPUT,
    "nonfinite-weights": NONFINITE_WEIGHTS,
    "activation-overflow": ACTIVATION_OVERFLOW,
    "masked-row": MASKED_ROW,
    "eps-underflow": EPS_UNDERFLOW,
    "poisoned-buffers": POISONED_BUFFERS,
}
