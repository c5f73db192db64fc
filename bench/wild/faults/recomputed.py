"""Faults of a part of the forward pass that backward() runs again, in another dtype."""

from __future__ import annotations

from bench.wild.faults.registry import Fault, Spelling
from bench.wild.pieces import courses

_AGAIN = """
class $Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, value, mode):
        ctx.layer, ctx.mode = layer, mode
        ctx.save_for_backward(value)
        return layer(value)

    @staticmethod
    def backward(ctx, upstream):
        value = ctx.saved_tensors[0].detach().float().requires_grad_()
        with torch.enable_grad(), ctx.mode:
            made = ctx.layer(value)
        torch.autograd.backward(made, upstream.to(made.dtype))
        return None, value.grad.to(ctx.saved_tensors[0].dtype), None
"""
_PART = """
def $part(layer, value, enabled):
    with torch.autocast("cpu", dtype=$half, enabled=enabled(torch.is_grad_enabled())):
        return layer(value if torch.is_autocast_enabled("cpu") else value.float())
"""


def _again(mode: str) -> dict[str, str]:
    return {"mid_out": f"return $Again.apply(self.$down, $h, {mode})"}


def _part(enabled: str, reentrant: bool) -> dict[str, str]:
    arguments = f"$part, self.$down, $h, lambda grad: {enabled}, use_reentrant={reentrant}"
    return {"mid_out": f"return torch.utils.checkpoint.checkpoint({arguments})"}


_SAME = 'torch.autocast("cpu", dtype=$half)'

SWITCHED = Fault(
    accepted=("dtype-switched",),
    spellings={
        "function": Spelling(
            _again("contextlib.nullcontext()"),
            _again(_SAME),
            {"mid_out": "return torch.utils.checkpoint.checkpoint(self.$down, $h, use_reentrant=False)"},
            code=_AGAIN,
        ),
        "other-half": Spelling(
            _again(
                'torch.autocast("cpu", dtype={torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}[$half])'
            ),
            _again(_SAME),
            {"mid_out": "return torch.utils.checkpoint.checkpoint(self.$down, $h, use_reentrant=True)"},
            code=_AGAIN,
        ),
        "grad-mode": Spelling(_part("not grad", True), _part("True", True), _part("True", False), code=_PART),
    },
    related=("no-loss-scaling",),
    precisions=("bf16", "fp16"),
    courses=courses.PERSISTENT,
    without_styles=("functional",),
    place="module",
)

FAULTS = {"dtype-switched": SWITCHED}
