"""misaligned-matmul: sizes that are no multiple of 8 slow down matrix products on tensor cores.

A run without a GPU is judged too: a model's sizes are chosen where it is tried, and cost time where it is trained.
"""

from __future__ import annotations

import re

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.low_precision.kernel_fallbacks import Fallbacks, Place, at, gathered, named

MIN_SHARE = 0.03
"""Share of the FLOPs. GPT-2 with 50257 words has 31 % of them in its head, and became 25 % faster with 50304, according
to the author of nanoGPT; 3 % are then worth 2 % of the run."""

TILE = 64
"""Sizes below it are not counted: a product is divided into tiles of 64 and more, and a smaller one fills none (NVIDIA,
Matrix Multiplication Background). So ten classes, the rank of a LoRA and the colours of an image are accepted."""

LARGE = 1024
"""Size from which the recommendation is a multiple of 64. An A100 and later need it for float16 (same guide)."""


def _counts(place: Place) -> bool:
    return place.reason == "misaligned" and bool(_sizes(place))


def _sizes(place: Place) -> list[int]:
    """Returns the misaligned sizes of the second factor, the largest first."""
    sizes = [int(each) for each in re.findall(r"\d+", place.shape.rpartition(" x ")[2])]
    asked = sizes[:2] if "convolution" in place.op else sizes[-2:]
    return sorted({each for each in asked if each >= TILE and each % 8}, reverse=True)


def _conclude(state: Fallbacks) -> Finding:
    place = state.gravest
    sizes = _sizes(place)
    one = "size" if len(sizes) == 1 else "sizes"
    said = " and ".join(map(str, sizes))
    cpu = "" if state.gpu else " Here, without a GPU, it costs no time; change it before the model is trained on one."
    like = "do not like" if state.gpu else "will not like"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{wording.percent(state.share)} of the matrix work has sizes that tensor cores {like}",
        cause=f"{wording.percent(state.share)} of the FLOPs of a forward pass are products with a size that is no"
        f" multiple of 8, the largest part in {named(place)}{at(place)}, with the {one} {said} in {place.shape}. Tensor"
        f" cores, the units of a GPU for matrix products, take those at a fraction of their speed.{cpu}",
        fix=_fix(place, sizes),
        module=place.module or None,
        caller=place.caller or None,
        evidence={**state.evidence(), "sizes": sizes, "padded": [padded(each) for each in sizes]},
        **lifecycle_fields(state.opened),
    )


def _fix(place: Place, sizes: list[int]) -> str:
    become = " and ".join(f"{each} to {padded(each)}" for each in sizes)
    if "bmm" in place.op:
        return (
            f"Pad {become} where batches are put together (pad_to_multiple_of=8 in a tokenizer's collator), with a"
            f" mask over what was added; or use scaled_dot_product_attention{at(place)}, which pads by itself."
        )
    return (
        f"Pad {become} in {place.module or 'the model'}: for a vocabulary add words that never occur, for a hidden"
        " width take the next multiple. What is learnt stays the same."
    )


def padded(size: int) -> int:
    """Returns the next size that tensor cores process at full speed."""
    step = 64 if size >= LARGE else 8
    return -(-size // step) * step


VERDICT = Verdict(
    id="misaligned-matmul",
    severity="ticket",
    title="Sizes that tensor cores do not like",
    question="Is a real share of the matrix work in sizes that are no multiple of 8?",
    columns=(),
    events=("kernel.fallback", "autocast.entered"),
    state=Fallbacks,
    rows=False,
    judge=gathered(_conclude, MIN_SHARE, _counts),
    explains=("slower-than-fp32",),
)
