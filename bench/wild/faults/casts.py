"""Faults that cost time and change no number: casts that bring nothing."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces import courses

_HALF = {"mid": "$h = $h.to($half)"}
"""As in the twin: the numbers are those of the broken program, bit for bit."""

_WIDE = "def $widened(value):\n    return value.to(torch.float32)\n"
_OWN = """
class $Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.float()

    @staticmethod
    def backward(ctx, upstream):
        return upstream.to($half)
"""

ACTIVATION_CASTS = Fault(
    accepted=("activation-casts",),
    spellings={
        "float": Spelling(
            {"mid": "$h = $h.to($half).float()"}, _HALF, {"mid": "$h = torch.tanh($h.to($half).float() / 2) * 2"}
        ),
        "weight": Spelling({"mid": "$h = $h.to($half).type_as(self.$down.bias)"}, _HALF),
        "argument": Spelling(
            {"mid_out": "return self.$down($h.to($half).to(dtype=torch.float32))"},
            {"mid_out": "return self.$down($h.to($half))"},
            {"mid_out": "return self.$down($h.to($half).float() + 0.01)"},
        ),
        "view": Spelling({"mid": "$h = $h.to($half).float().unsqueeze(0).squeeze(0)"}, _HALF),
        "helper": Spelling({"mid": "$h = $widened($h.to($half))"}, _HALF, code=_WIDE),
        "function": Spelling({"mid": "$h = $Wide.apply($h.to($half))"}, _HALF, code=_OWN),
    },
    precisions=("bf16", "fp16"),
    courses=courses.PERSISTENT,
    archs=("mlp", "transformer", "residual", "custom"),
    place="line",
    numbers_change=False,
)

FAULTS = {"activation-casts": ACTIVATION_CASTS}
