"""Faults of dtypes: weights, state, copies and operators in a precision that does not suit them."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces import courses
from bench.wild.pieces.slots import SCALED

HALF_WEIGHTS = Fault(
    accepted=("half-master-weights", "lost-updates"),
    spellings={
        "method": Spelling(
            {"cast": "$model.bfloat16()"}, alike={"cast": "$teacher = copy.deepcopy($model).bfloat16()"}
        ),
        "to": Spelling({"cast": "$model.to(dtype=torch.bfloat16)"}, alike={"cast": "$model.to(dtype=torch.float32)"}),
        "data": Spelling({"cast": "for $p in $model.parameters(): $p.data = $p.data.to(torch.bfloat16)"}),
        "helper": Spelling(
            {"cast": "$shrink($model)"},
            code="def $shrink(module):\n    return module.apply(lambda m: m.to(torch.bfloat16))",
        ),
        "late": Spelling({"after_step": "if $step == 10: $model.bfloat16()"}, {"after_step": ""}),
    },
    related=("half-optimizer-state", "stagnation"),
    precisions=("bf16",),
    courses=("constant",),
    archs=("mlp", "conv", "transformer", "rnn", "custom"),
    optimizers=("sgd", "adafactor", "own"),
)

HALF_STATE = Fault(
    accepted=("half-optimizer-state",),
    spellings={
        "created": Spelling({"make_optimizer": "$opt = $make_half_state"}),
        "created-half": Spelling({"make_optimizer": "$opt = $make_fp16_state"}),
    },
    related=("lost-updates", "stagnation", "gradient-spike"),
    courses=("constant",),
    optimizers=("own", "adafactor"),
    without_styles=("two-optimizers",),
)

_AVERAGE = "$average = {name: p.detach().bfloat16().clone() for name, p in $model.named_parameters()}"


_BLEND = "$blend = lambda kept, new, _: kept + 0.0005 * (new.to(kept.dtype) - kept)"


def _averaged(make: str, move: str, good: str) -> Spelling:
    return Spelling({"after_build": make, "after_step": move}, {"after_build": good, "after_step": move}, code=_BLEND)


LOST_AVERAGE = Fault(
    accepted=("lost-updates",),
    spellings={
        "dict": _averaged(
            _AVERAGE,
            "for $key, $p in $model.named_parameters(): $average[$key] = "
            "$average[$key] * 0.9995 + $p.detach().to($average[$key].dtype) * 0.0005",
            _AVERAGE.replace(".bfloat16()", ".float()"),
        ),
        "module": _averaged(
            "$average = copy.deepcopy($model).bfloat16()",
            "for $a, $p in zip($average.parameters(), $model.parameters()): "
            "$a.data.add_(($p.detach() - $a.data).to($a.dtype), alpha=0.0005)",
            "$average = copy.deepcopy($model)",
        ),
        "foreach": _averaged(
            "$average = [p.detach().bfloat16().clone() for p in $model.parameters()]",
            "torch._foreach_lerp_($average, [p.detach().to($average[0].dtype) for p in $model.parameters()], 0.0005)",
            "$average = [p.detach().clone() for p in $model.parameters()]",
        ),
        "swa": _averaged(
            "$average = torch.optim.swa_utils.AveragedModel(copy.deepcopy($model).bfloat16(), avg_fn=$blend)",
            "$average.update_parameters($model)",
            "$average = torch.optim.swa_utils.AveragedModel($model, avg_fn=$blend)",
        ),
    },
    courses=("constant",),
    archs=("mlp", "conv", "transformer", "rnn", "custom"),
    numbers_change=False,
)
_OFF = """
with torch.autocast("cpu", enabled=False):
    return F.linear($h.float(), self.$down.weight, self.$down.bias)
"""
_FLOAT = """
with torch.autocast("cpu", enabled=False):
    return ($h.float() @ self.$down.weight.t() + self.$down.bias).to($h.dtype)
"""
_WIDE = """
class $Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, weight):
        ctx.save_for_backward(value, weight)
        with torch.autocast("cpu", enabled=False):
            return value.float() @ weight.t()

    @staticmethod
    def backward(ctx, upstream):
        value, weight = ctx.saved_tensors
        upstream = upstream.float()
        return (upstream @ weight).to(value.dtype), upstream.flatten(0, -2).t() @ value.float().flatten(0, -2)
"""

FP32_FALLBACK = Fault(
    accepted=("fp32-fallback",),
    spellings={
        "off": Spelling({"mid_out": _OFF}),
        "operator": Spelling({"mid_out": _FLOAT}),
        "function": Spelling({"mid_out": "return $Wide.apply($h, self.$down.weight) + self.$down.bias"}, code=_WIDE),
        "einsum": Spelling(
            {
                "mid_out": 'with torch.autocast("cpu", enabled=False):\n'
                '    return torch.einsum("...i,oi->...o", $h.float(), self.$down.weight) + self.$down.bias'
            }
        ),
        "wrong-device": Spelling(
            {
                "mid_out": 'with torch.autocast("cpu", dtype=torch.float32):\n'
                "    return F.linear($h.float(), self.$down.weight, self.$down.bias)"
            }
        ),
    },
    related=("not-as-asked", "activation-casts"),
    precisions=("bf16", "fp16"),
    courses=courses.PERSISTENT,
    place="module",
)

_MIXED = 'with torch.autocast("cpu", enabled=False):\n    $h = {}'
_EYE = "torch.eye($h.shape[-1]{})"

UNSUPPORTED = Fault(
    accepted=("unsupported-op",),
    spellings={
        "matmul": Spelling(
            {"mid": _MIXED.format(f"torch.matmul($h, {_EYE.format('')})")},
            {"mid": _MIXED.format(f"torch.matmul($h, {_EYE.format(', dtype=$h.dtype')})")},
        ),
        "operator": Spelling(
            {"mid": _MIXED.format(f"$h @ {_EYE.format('')}")},
            {"mid": _MIXED.format(f"$h @ {_EYE.format(', dtype=$h.dtype')}")},
        ),
        "linear": Spelling(
            {"mid": _MIXED.format(f"F.linear($h, {_EYE.format('')})")},
            {"mid": _MIXED.format(f"F.linear($h, {_EYE.format('')}.to($h))")},
        ),
    },
    precisions=("bf16", "fp16"),
    courses=("late", "once", "phase", "after-eval"),
    place="module",
    ends=True,
)

AUTOCAST_SCOPE = Fault(
    accepted=("autocast-scope",),
    spellings={
        "backward": Spelling(
            {
                "forward": "with $autocast:\n    $out = $predict\n    $loss = $criterion($out, $y)\n"
                "    $loss = $loss * 1.0\n    @back($scaler.$m_scale($loss))",
                "backward": "",
            },
        ),
        "all": Spelling(
            {
                "forward": "$outer = $autocast\n$outer.__enter__()\n$out = $predict\n$loss = $criterion($out, $y)",
                "update": "$scaler.$m_update()\n$outer.__exit__(None, None, None)",
            },
        ),
        "step": Spelling({"step": "with $autocast:\n    $scaler.$m_step($opt)"}),
    },
    precisions=SCALED,
    courses=courses.PERSISTENT,
    without_styles=("functional", "accumulation", "two-optimizers", "fabric"),
    numbers_change=False,
    place="line",
)

STALE_CASTS = Fault(
    accepted=("autocast-scope",),
    spellings={
        "never-left": Spelling(
            {"forward": "$autocast.__enter__()\n$out = $predict\n$loss = $criterion($out, $y)"},
            alike={
                "forward": "$outer = $autocast\n$outer.__enter__()\n$out = $predict\n$loss = $criterion($out, $y)\n"
                "$outer.__exit__(None, None, None)"
            },
        ),
    },
    related=("stagnation",),
    precisions=("bf16",),
    courses=courses.PERSISTENT,
    without_styles=("functional", "two-optimizers"),
)

_LSE = "return ($out.exp().sum(-1).log() - $out.gather(-1, $y[:, None]).squeeze(-1)).mean()"

LOSS_IN_HALF = Fault(
    accepted=("loss-in-half", "sensitive-op-in-half"),
    spellings={
        "logsumexp": Spelling(
            {"criterion": "$out = $out.to($half)\n" + _LSE}, {"criterion": "$out = $out.float()\n" + _LSE}
        ),
        "softmax": Spelling(
            {"criterion": "return -torch.softmax($out.to($half), -1).gather(-1, $y[:, None]).log().mean()"},
            {"criterion": "return -torch.softmax($out.float(), -1).gather(-1, $y[:, None]).log().mean()"},
        ),
        "mean": Spelling({"criterion": 'return F.cross_entropy($out.float(), $y, reduction="none").to($half).mean()'}),
        "helper": Spelling(
            {"criterion": "return $entropy($out.to($half), $y)"},
            {"criterion": "return $entropy($out.float(), $y)"},
            code="""
def $entropy(score, target):
    shifted = score - score.max(-1, keepdim=True).values.detach()
    return (shifted.exp().sum(-1).log() - shifted[torch.arange(len(target)), target]).mean()
""",
        ),
    },
    precisions=("bf16",),
    courses=courses.PERSISTENT,
    place="line",
)

_PLACES = "5000 + torch.arange($h.shape[-1])"
_RATE = "torch.logspace(0, -2, $h.shape[-1])"


def _waves(angles: str) -> dict[str, str]:
    return {"mid": f"$h = $h + 0.1 * {angles}"}


_OWN_ANGLES = """
def $angles(like, dtype):
    places = torch.arange(5000, 5000 + like.shape[-1], dtype=dtype)
    return places / 3
"""
_OWN_VARIANCE = """
def $normed(value):
    value = value + 100
    spread = value.pow(2).mean(-1, keepdim=True) - value.mean(-1, keepdim=True).pow(2)
    return (value - value.mean(-1, keepdim=True)) * torch.rsqrt(spread.clamp(min=0) + 0.1)
"""

SENSITIVE = Fault(
    accepted=("sensitive-op-in-half",),
    spellings={
        "cast": Spelling(
            _waves(f"torch.sin(({_PLACES}).to($half) * {_RATE}.to($half))"),
            _waves(f"torch.sin(({_PLACES}) * {_RATE})"),
            _waves(f"torch.sin(({_PLACES}) * {_RATE}).to($half)"),
        ),
        "promoted": Spelling(
            _waves(f"torch.cos(({_PLACES}) * {_RATE}.to($half))"),
            _waves(f"torch.cos(({_PLACES}) * {_RATE})"),
            _waves("torch.cos(torch.arange($h.shape[-1], dtype=$half))"),
        ),
        "helper": Spelling(
            _waves("$angles($h, $half).sin()"),
            _waves("$angles($h, torch.float32).sin()"),
            code=_OWN_ANGLES,
        ),
        "product": Spelling(
            _waves(f"(({_PLACES}).float()[:, None] @ torch.full((1, 1), 0.3)).squeeze(-1).cos()"),
            _waves(f"(({_PLACES}).float()[:, None] * torch.full((1, 1), 0.3)).squeeze(-1).cos()"),
        ),
        "einsum": Spelling(
            _waves(f'torch.einsum("i,j->ij", ({_PLACES}).to($half), torch.full((8,), 0.3).to($half))[:, 0].sin()'),
            _waves(f"(({_PLACES}).float() * 0.3).sin()"),
        ),
        "variance": Spelling(
            {"mid": "$h = $normed($h.to($half))"},
            {"mid": "$h = $normed($h.float())"},
            {"mid": "$h = F.layer_norm($h.to($half), $h.shape[-1:])"},
            code=_OWN_VARIANCE,
        ),
    },
    precisions=("bf16", "fp16"),
    courses=courses.PERSISTENT,
    place="line",
)

FAULTS = {
    "half-weights": HALF_WEIGHTS,
    "half-state": HALF_STATE,
    "lost-average": LOST_AVERAGE,
    "fp32-fallback": FP32_FALLBACK,
    "unsupported-op": UNSUPPORTED,
    "autocast-scope": AUTOCAST_SCOPE,
    "stale-casts": STALE_CASTS,
    "loss-in-half": LOSS_IN_HALF,
    "sensitive-op-in-half": SENSITIVE,
}
