"""Faults of the training as a whole: its dynamics, checkpoints, processes and replicas."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces import courses

_RATE = 'for $group in $opt.param_groups: $group["lr"] = $group["lr"] * {}'

DIVERGED = Fault(
    accepted=("diverged",),
    spellings={
        "group": Spelling({"after_build": _RATE.format("3000.0")}, alike={"after_build": _RATE.format("0.5")}),
        "loss": Spelling({"after_build": _RATE.format("1e5")}, {"after_build": _RATE.format("1.0")}),
        "sign": Spelling({"after_loss": "$loss = -30.0 * $loss"}, {"after_loss": "$loss = 1.0 * $loss"}),
        "weights": Spelling(
            {"after_step": "with torch.no_grad(): torch._foreach_mul_(list($model.parameters()), 1.5)"},
            {"after_step": ""},
            {"after_step": "with torch.no_grad(): torch._foreach_mul_(list($model.parameters()), 1.0)"},
        ),
    },
    related=(
        "gradient-spike",
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-weights",
        "sign-flip",
        "activation-overflow",
        "scale-collapse",
        "overflow-storm",
    ),
    courses=("constant",),
    optimizers=("sgd", "adamw", "fused", "own"),
)

GRADIENT_SPIKE = Fault(
    accepted=("gradient-spike", "diverged"),
    spellings={
        "loss": Spelling(
            {"after_loss": "$loss = $loss * 3000.0"},
            {"after_loss": "$loss = $loss * 1.0"},
            {"after_loss": "$loss = $loss * 1.5"},
        ),
        "labels": Spelling({"data": "$x = $x * 500.0"}, {"data": "$x = $x * 1.0"}),
        "gradients": Spelling(
            {"reduce": "torch._foreach_mul_([$p.grad for $p in $model.parameters() if $p.grad is not None], 5000.0)"}
        ),
        "hook": Spelling(
            {"after_loss": "$out.register_hook(lambda g: g * 4000.0)"},
            {"after_loss": "$out.register_hook(lambda g: g * 1.0)"},
        ),
        "function": Spelling(
            {"after_loss": "$loss = $Amplify.apply($loss, 5000.0)"},
            {"after_loss": "$loss = $Amplify.apply($loss, 1.0)"},
            code="""
class $Amplify(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, gain):
        ctx.gain = gain
        return value.clone()

    @staticmethod
    def backward(ctx, upstream):
        return upstream * ctx.gain, None
""",
        ),
    },
    related=(
        "overflow-storm",
        "nonfinite-gradient",
        "nonfinite-loss",
        "nonfinite-weights",
        "sign-flip",
        "scale-collapse",
        "activation-overflow",
    ),
    precisions=("bf16", "fp32"),
    archs=("mlp", "conv", "rnn", "custom"),
    courses=("once", "burst", "late", "phase", "every-50"),
    clips=("", "torch", "value"),  # a clip of the program's own takes the spike back before the optimizer has it
)

STAGNATION = Fault(
    accepted=("stagnation",),
    spellings={
        "group": Spelling({"after_build": _RATE.format("1e-7")}, {"after_build": _RATE.format("1.0")}),
        "loss": Spelling(
            {
                "after_step": "with torch.no_grad(): torch._foreach_copy_(list($model.parameters()), $before)",
                "after_build": "$before = [p.detach().clone() for p in $model.parameters()]",
            },
            {"after_step": "", "after_build": "$before = [p.detach().clone() for p in $model.parameters()]"},
        ),
        "state": Spelling({"reduce": "for $p in $model.parameters():\n    if $p.grad is not None: $p.grad.mul_(1e-9)"}),
    },
    related=("no-gradients", "gradient-underflow", "lost-updates", "gradient-spike"),
    precisions=("bf16", "fp32"),
    optimizers=("sgd", "own"),
    without_styles=("resume",),  # each of its processes makes 120 steps, in which a warm-up has not ended
    courses=("constant",),
)

NO_GRADIENTS = Fault(
    accepted=("no-gradients",),
    spellings={
        "copied": Spelling({"make_optimizer": "$opt = $make_on_copy"}),
        "rebuilt": Spelling({"after_build": "$model = $Net()"}, {"after_build": "pass"}),
        "detached": Spelling({"after_loss": "$loss = $loss.detach().requires_grad_()"}),
        "frozen": Spelling(
            {
                "after_build": "for $p in $model.parameters(): $p.requires_grad_(False)",
                "after_loss": "$loss = $loss + torch.zeros((), requires_grad=True)",
            },
            {"after_build": "pass", "after_loss": "$loss = $loss + torch.zeros((), requires_grad=True)"},
        ),
        "function": Spelling(
            {"after_loss": "$loss = $Stop.apply($loss)"},
            {"after_loss": "$loss = $loss * 1.0"},
            code="""
class $Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, upstream):
        return None
""",
        ),
    },
    related=("stagnation", "gradient-spike"),
    precisions=("bf16", "fp32", "fp16", "own-scaler"),
    optimizers=("sgd", "adamw", "own", "adafactor", "fused"),
    without_styles=("functional", "two-optimizers", "resume", "ranks", "notebook"),
    courses=("constant",),
    clips=("", "torch", "inline", "value"),  # the others fail without a gradient, before the first step
    ends=True,
)

_STATE = '{{"model": $model.state_dict(){}, "step": $step + 1}}'
_OPTIMIZER, _SCALER = ', "optimizer": $opt.state_dict()', ', "scaler": $scaler_state'


def _saved(text: str) -> str:
    return f"if ($step + 1) % 12 == 0: torch.save({text}, $path)"


_COMPLETE = {"save": _saved(_STATE.format(_OPTIMIZER + _SCALER))}

CHECKPOINT_INCOMPLETE = Fault(
    accepted=("checkpoint-incomplete",),
    spellings={
        "weights": Spelling({"save": _saved("$model.state_dict()")}, _COMPLETE),
        "dict": Spelling({"save": _saved(_STATE.format(""))}, _COMPLETE),
        "tuple": Spelling({"save": _saved("($model.state_dict(), $step)")}, _COMPLETE),
        "half": Spelling(
            {"save": _saved("{name: value.half() for name, value in $model.state_dict().items()}")}, _COMPLETE
        ),
        "whole": Spelling({"save": _saved("copy.deepcopy($model).state_dict().copy()")}, _COMPLETE),
    },
    courses=("constant",),
    numbers_change=False,
    without_styles=("resume", "ranks"),
)

_LOAD = '$stored = torch.load($path, weights_only=False)\n$model.load_state_dict($stored["model"])\n'
_BEGIN = '$begin = $stored["step"]'
_LOAD_OPT, _LOAD_SCALER = '$opt.load_state_dict($stored["optimizer"])\n', "$load_scaler\n"

RESUME_WITHOUT_OPTIMIZER = Fault(
    accepted=("resume-mismatch",),
    spellings={
        "forgotten": Spelling({"load": _LOAD + _LOAD_SCALER + _BEGIN}),
        "copy": Spelling(
            {"load": _LOAD + _LOAD_SCALER + 'copy.deepcopy($opt).load_state_dict($stored["optimizer"])\n' + _BEGIN}
        ),
        "groups": Spelling(
            {
                "load": _LOAD
                + _LOAD_SCALER
                + 'for $a, $b in zip($opt.param_groups, $stored["optimizer"]["param_groups"]): '
                '$a["lr"] = $b["lr"]\n' + _BEGIN
            }
        ),
    },
    related=("gradient-spike", "scaler-not-restored"),
    courses=("constant",),
    styles=("resume",),
    optimizers=("sgd", "adamw", "own", "adafactor", "fused"),
)

RESUME_WITHOUT_SCALER = Fault(
    accepted=("scaler-not-restored",),
    spellings={
        "forgotten": Spelling(
            {"load": _LOAD + _LOAD_OPT + _BEGIN, "make_scaler": "$make_low_scaler"}, {"make_scaler": "$make_low_scaler"}
        ),
        "copy": Spelling(
            {
                "load": _LOAD + _LOAD_OPT + "$unused = copy.copy($stored['scaler'])\n" + _BEGIN,
                "make_scaler": "$make_low_scaler",
            },
            {"make_scaler": "$make_low_scaler"},
        ),
    },
    related=("resume-mismatch", "scaler-rebuilt"),
    precisions=("fp16",),
    courses=("constant",),
    styles=("resume",),
)

RUN_LOST = Fault(
    accepted=("run-lost",),
    spellings={
        "kill": Spelling({"after_step": "os.kill(os.getpid(), 9)"}, {"after_step": ""}),
        "exit": Spelling({"after_step": "os._exit(3)"}, {"after_step": ""}),
        "abort": Spelling({"after_step": "os.abort()"}, {"after_step": ""}),
    },
    courses=("late", "once", "after-eval", "phase"),
    without_styles=("ranks", "resume"),
    ends=True,
)

_REDUCED = "for $p in $model.parameters():\n    dist.all_reduce($p.grad)\n    $p.grad /= dist.get_world_size()"

RANKS_APART = Fault(
    accepted=("ranks-disagree", "broken-in-reduction"),
    spellings={
        "missing": Spelling({"reduce": "pass"}),
        "one-rank": Spelling({"reduce": _REDUCED + "\nif dist.get_rank() == 1: $p.grad.add_(0.5)"}),
        "copy": Spelling({"reduce": _REDUCED.replace("all_reduce($p.grad)", "all_reduce($p.grad.clone())")}),
    },
    related=("nonfinite-gradient", "gradient-spike"),
    courses=courses.ALL,
    styles=("ranks",),
)

HALF_REDUCTION = Fault(
    accepted=("half-reduction",),
    spellings={
        "cast": Spelling(
            {
                "reduce": "for $p in $model.parameters():\n    $short = $p.grad.bfloat16()\n"
                "    dist.all_reduce($short)\n"
                "    $p.grad = $short.float() / dist.get_world_size()"
            }
        ),
        "flat": Spelling(
            {
                "reduce": "$flat = torch.cat([$p.grad.flatten() for $p in $model.parameters()]).bfloat16()\n"
                "dist.all_reduce($flat)\n$flat = $flat.float() / dist.get_world_size()\n"
                "for $p, $part in zip($model.parameters(), $flat.split([p.numel() for p in $model.parameters()])):\n"
                "    $p.grad = $part.view_as($p).clone()"
            }
        ),
    },
    courses=courses.PERSISTENT,
    styles=("ranks",),
)

REDUCED = _REDUCED

FAULTS = {
    "diverged": DIVERGED,
    "gradient-spike": GRADIENT_SPIKE,
    "stagnation": STAGNATION,
    "no-gradients": NO_GRADIENTS,
    "checkpoint-incomplete": CHECKPOINT_INCOMPLETE,
    "resume-without-optimizer": RESUME_WITHOUT_OPTIMIZER,
    "resume-without-scaler": RESUME_WITHOUT_SCALER,
    "run-lost": RUN_LOST,
    "ranks-apart": RANKS_APART,
    "half-reduction": HALF_REDUCTION,
}
