"""Faults of the loss scale and of its scaler."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces import courses

_AS_IT_WAS = {"after_step": ""}

OVERFLOW_STORM = Fault(
    accepted=("overflow-storm",),
    spellings={
        "interval": Spelling(
            {"make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)'},
            alike={"make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=2000)'},
        ),
        "factor": Spelling(
            {
                "make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_factor=16.0, '
                "growth_interval=4)"
            }
        ),
        "setter": Spelling({"after_build": "$scaler.set_growth_interval(2)"}),
        "by-hand": Spelling({"after_step": "if $step % 5 == 4: $scaler.update($scale_now * 32.0)"}, _AS_IT_WAS),
    },
    related=("scale-collapse", "gradient-spike"),
    precisions=("fp16",),
    courses=("constant",),
)

SCALE_FALLS = Fault(
    accepted=("scale-underflowed", "scale-collapse", "gradient-underflow"),
    spellings={
        "update": Spelling(
            {"after_step": "$scaler.update($scale_now * 0.25)"},
            _AS_IT_WAS,
            {"after_step": "$scaler.update(max(1024.0, $scale_now))"},
        ),
        "init": Spelling({"make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-130)'}),
        "backoff": Spelling(
            {
                "make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=1e-16, '
                "growth_interval=100000)"
            }
        ),
    },
    related=("nonfinite-weights", "nonfinite-loss", "nonfinite-gradient"),
    precisions=("fp16",),
    courses=("constant",),
)

_TINY = "$loss = $loss * 2e-5"


GRADIENT_UNDERFLOW = Fault(
    accepted=("gradient-underflow",),
    spellings={
        "init": Spelling(
            {
                "make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10**6)',
                "after_loss": _TINY,
            },
            {
                "make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10**6)',
                "after_loss": _TINY,
            },
        ),
        "weight": Spelling({"after_loss": "$loss = 1e-7 * $loss"}, {"after_loss": "$loss = 1.0 * $loss"}),
        "mean": Spelling({"after_loss": "$loss = $loss / $y.numel() ** 5"}, {"after_loss": "$loss = $loss * 1.0"}),
    },
    related=("stagnation", "gradient-spike"),
    precisions=("fp16",),
    courses=courses.PERSISTENT,
    optimizers=("adamw", "adafactor", "sgd", "own"),
)

_NO_SCALER = {"make_scaler": "", "unscale": "", "step": "$opt.step()", "update": "", "backward": "@back($loss)"}
_ENTERED = """
$scope = $autocast
$scope.__enter__()
$out = $predict
$loss = $criterion($out, $y)
$scope.__exit__(None, None, None)
"""
_DECORATED = """
$infer = $autocast($model)
$out = $infer($x)
$loss = $criterion($out, $y)
"""
_NESTED = """
with contextlib.ExitStack() as $stack:
    $stack.enter_context($autocast)
    $out = $predict
    $loss = $criterion($out, $y)
"""
_SET = """
torch.set_autocast_enabled("cpu", True)
torch.set_autocast_dtype("cpu", torch.float16)
$out = $predict
$loss = $criterion($out, $y)
torch.set_autocast_enabled("cpu", False)
"""

_FORWARDS = {"entered": _ENTERED, "decorated": _DECORATED, "nested": _NESTED, "set": _SET}

NO_LOSS_SCALING = Fault(
    accepted=("no-loss-scaling",),
    spellings={
        "with": Spelling(_NO_SCALER),
        **{name: Spelling({**_NO_SCALER, "forward": text}, {"forward": text}) for name, text in _FORWARDS.items()},
    },
    related=("gradient-underflow", "stagnation"),
    precisions=("fp16",),
    courses=("constant",),
    without_styles=("functional", "resume"),
)

_WITH_SCALER = {
    "backward": "@back($scaler.scale($loss))",
    "unscale": "$scaler.unscale_($opt)",
    "step": "$scaler.step($opt)",
    "update": "$scaler.update()",
}

POINTLESS_SCALER = Fault(
    accepted=("pointless-scaler",),
    spellings={
        "torch": Spelling({**_WITH_SCALER, "make_scaler": '$scaler = torch.amp.GradScaler("cpu")'}),
        "subclass": Spelling(
            {**_WITH_SCALER, "make_scaler": '$scaler = $Careful("cpu", init_scale=256.0)'},
            code="class $Careful(torch.amp.GradScaler):\n    pass",
        ),
        "own": Spelling({**_WITH_SCALER, "make_scaler": "$scaler = torch.cpu.amp.GradScaler(init_scale=2.0**12)"}),
    },
    precisions=("bf16",),
    courses=("constant",),
    without_styles=("functional",),
    optimizers=("sgd", "adamw", "own", "adafactor", "fused"),
    numbers_change=False,
)

SCALER_DISABLED = Fault(
    accepted=("scaler-disabled",),
    spellings={
        "flag": Spelling({"make_scaler": '$scaler = torch.amp.GradScaler("cpu", enabled=torch.cuda.is_available())'}),
        "device": Spelling({"make_scaler": '$scaler = torch.amp.GradScaler("cuda")'}),
        "old": Spelling({"make_scaler": "$scaler = torch.cuda.amp.GradScaler()"}),
        "off": Spelling({"make_scaler": '$scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=False)'}),
        "subclass": Spelling(
            {"make_scaler": '$scaler = $Careful("cpu", 1024.0, 2.0)'},
            code="""
class $Careful(torch.amp.GradScaler):
    def __init__(self, device, init_scale, growth_factor):
        super().__init__(device, init_scale, growth_factor, 0.5, 2000, False)
""",
        ),
    },
    related=("no-loss-scaling", "gradient-underflow"),
    precisions=("fp16",),
    courses=("constant",),
    without_styles=("resume",),
)

_FRESH = 'if $step % 30 == 29: $scaler = torch.amp.GradScaler("cpu", init_scale={})'

SCALER_REBUILT = Fault(
    accepted=("scaler-rebuilt",),
    spellings={
        "inline": Spelling(
            {"after_step": _FRESH.format("2.0**16")}, _AS_IT_WAS, {"after_step": _FRESH.format("$scale_now")}
        ),
        "helper": Spelling(
            {"after_step": "if $step % 40 == 39: $scaler = $fresh()"},
            _AS_IT_WAS,
            code='def $fresh():\n    return torch.amp.GradScaler("cpu", init_scale=2.0**20)',
        ),
        "state": Spelling(
            {"after_step": 'if $step % 30 == 29: $scaler = type($scaler)("cpu", init_scale=2.0**18)'}, _AS_IT_WAS
        ),
    },
    related=("overflow-storm", "scale-collapse"),
    precisions=("fp16",),
    courses=("constant",),
)


def _asked(scope: str) -> Spelling:
    return Spelling({"forward": f"with {scope}:\n    $out = $predict\n    $loss = $criterion($out, $y)"})


NOT_AS_ASKED = Fault(
    accepted=("not-as-asked", "fp32-fallback"),
    spellings={
        "device": _asked("torch.autocast('cuda', dtype=$half)"),
        "old": _asked("torch.cuda.amp.autocast(dtype=$half)"),
        "ended": Spelling(
            {"forward": "with $autocast:\n    pass\n$out = $predict\n$loss = $criterion($out, $y)"},
        ),
    },
    related=("pointless-scaler",),
    precisions=("fp16", "bf16"),
    courses=courses.PERSISTENT,
)

SCALED_FLOAT32 = Fault(
    accepted=("not-as-asked", "fp32-fallback"),
    spellings={
        "flag": _asked("torch.autocast('cpu', dtype=$half, enabled=torch.cuda.is_available())"),
        "float32": _asked("torch.autocast('cpu', dtype=torch.float32)"),
        "switch": _asked("torch.autocast('cpu', dtype=$half, enabled=len($x) > 4096)"),
    },
    related=("pointless-scaler",),
    precisions=("fp16",),  # without a scaler, such a program asks for float32
    courses=courses.PERSISTENT,
)

FAULTS = {
    "overflow-storm": OVERFLOW_STORM,
    "scale-falls": SCALE_FALLS,
    "gradient-underflow": GRADIENT_UNDERFLOW,
    "no-loss-scaling": NO_LOSS_SCALING,
    "pointless-scaler": POINTLESS_SCALER,
    "scaler-disabled": SCALER_DISABLED,
    "scaler-rebuilt": SCALER_REBUILT,
    "not-as-asked": NOT_AS_ASKED,
    "scaled-float32": SCALED_FLOAT32,
}
