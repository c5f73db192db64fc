"""sdpa-math: attention on a GPU uses the math backend instead of a fused kernel."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.low_precision.kernel_fallbacks import Fallbacks, Place, fallback_judge, line_text, modules_text

MIN_SHARE = 0.02
"""Share of the FLOPs. The math backend took up to 7.6 times as long as fused attention (FlashAttention, figure 1), so
2 % make a forward pass about an eighth longer; attention over a few dozen positions is below it."""

MATH_SLOWDOWN = 7.6
"""Duration relative to a fused kernel, from the same source. The finding reports it as the possible cost."""


def _counts(place: Place) -> bool:
    return place.reason == "sdpa-math"


def _conclude(state: Fallbacks) -> Finding:
    place = state.largest
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Attention uses the math backend instead of a fused kernel",
        cause=f"scaled_dot_product_attention in {modules_text(place)}{line_text(place)} uses torch's math backend"
        f" instead of a fused kernel and stores the full matrix of scores in {place.dtype or 'float32'}. It is"
        f" {wording.percent(state.share)} of the matrix FLOPs of a forward pass. The math backend is up to"
        f" {MATH_SLOWDOWN:g} times slower than a fused kernel, and its memory grows with the square of the sequence"
        " length.",
        fix=f"Run the call{line_text(place)} once inside torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION,"
        " SDPBackend.EFFICIENT_ATTENTION]): torch then warns why each backend rejects the inputs, and raises. Usual"
        " reasons: query, key and value have different dtypes; the head size is not a multiple of 8; key and value"
        " have fewer heads than query; a mask, which flash attention does not support, together with one of these; or"
        " a setting that allows only the math backend.",
        module=place.module or None,
        caller=place.caller or None,
        evidence=state.evidence(),
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="sdpa-math",
    severity="ticket",
    title="Attention on the math backend",
    question="Does attention on the GPU use the math backend instead of a fused kernel?",
    columns=(),
    events=("kernel.fallback", "autocast.entered"),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=Fallbacks,
    rows=False,
    judge=fallback_judge(_conclude, MIN_SHARE, _counts, gpu=True),
    explains=("memory-not-saved", "slower-than-fp32"),
)
