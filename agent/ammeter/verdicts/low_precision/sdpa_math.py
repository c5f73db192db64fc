"""sdpa-math: attention on a GPU uses the float32 math path instead of a fused kernel."""

from __future__ import annotations

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.low_precision.kernel_fallbacks import Fallbacks, Place, at, gathered, named

MIN_SHARE = 0.02
"""Share of the FLOPs. The math path took up to 7.6 times as long as fused attention (FlashAttention, figure 1), so 2 %
make a forward pass about an eighth longer; attention over a few dozen positions is below it."""

SLOWER = 7.6
"""Duration relative to a fused kernel, from the same source. The finding reports it as the possible cost."""


def _counts(place: Place) -> bool:
    return place.reason == "sdpa-math"


def _conclude(state: Fallbacks) -> Finding:
    place = state.gravest
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title="Attention is written out instead of fused",
        cause=f"scaled_dot_product_attention in {named(place)}{at(place)} took torch's math path: it writes out the"
        f" scores of every position against every other in {place.dtype or 'float32'}. That is"
        f" {wording.percent(state.share)} of the FLOPs of a forward pass, up to {SLOWER:g} times slower than a fused"
        " kernel, and memory that grows with the square of the length.",
        fix=f"Run the call{at(place)} once inside torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION,"
        " SDPBackend.EFFICIENT_ATTENTION]): torch then warns why each of them refuses, and stops. Usual reasons:"
        " query, key and value of several dtypes, a head size that is no multiple of 8, fewer heads in key and value"
        " than in query, a mask (which flash does not take) together with one of these, or a setting that allows the"
        " math path alone.",
        module=place.module or None,
        caller=place.caller or None,
        evidence=state.evidence(),
        **lifecycle_fields(state.opened),
    )


VERDICT = Verdict(
    id="sdpa-math",
    severity="ticket",
    title="Attention on the math path",
    question="Does attention on the GPU run written out instead of in a fused kernel?",
    columns=(),
    events=("kernel.fallback", "autocast.entered"),
    state=Fallbacks,
    rows=False,
    judge=gathered(_conclude, MIN_SHARE, _counts, gpu=True),
    explains=("memory-not-saved", "slower-than-fp32"),
)
