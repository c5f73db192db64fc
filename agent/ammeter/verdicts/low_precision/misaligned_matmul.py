"""misaligned-matmul: sizes that are no multiple of 8 slow down matrix products on tensor cores.

Only a run on a GPU with tensor cores is judged: elsewhere such sizes cost no time.
"""

from __future__ import annotations

import re

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import lifecycle_fields
from ammeter.verdicts.framework.readings import Readings, under_autocast
from ammeter.verdicts.low_precision.kernel_fallbacks import Fallbacks, Place, fallback_judge, line_text, modules_text

MIN_SHARE = 0.03
"""Share of the FLOPs. GPT-2 with 50257 words has 31 % of them in its head, and became 25 % faster with 50304, according
to the author of nanoGPT; 3 % are then worth 2 % of the run."""

MIN_SIZE = 64
"""Sizes below it are not counted: a product is divided into tiles of 64 and more, and a smaller one fills none (NVIDIA,
Matrix Multiplication Background). So ten classes, the rank of a LoRA and the colours of an image are accepted."""

LARGE_SIZE = 1024
"""Size from which the recommendation is a multiple of 64. An A100 and later need it for float16 (same guide)."""


def _counts(place: Place) -> bool:
    return place.reason == "misaligned" and bool(misaligned_sizes(place.op, place.shape))


def misaligned_sizes(op: str, shape: str) -> list[int]:
    """Returns the misaligned sizes of the second factor that count, the largest first."""
    sizes = [int(digits) for digits in re.findall(r"\d+", shape.rpartition(" x ")[2])]
    of_factor = sizes[:2] if "convolution" in op else sizes[-2:]
    return sorted({size for size in of_factor if size >= MIN_SIZE and size % 8}, reverse=True)


def _conclude(state: Fallbacks) -> Finding:
    place = state.largest
    sizes = misaligned_sizes(place.op, place.shape)
    noun = "size" if len(sizes) == 1 else "sizes"
    listed = " and ".join(map(str, sizes))
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"{wording.percent(state.share)} of the matrix FLOPs have sizes that are not multiples of 8",
        cause=f"{wording.percent(state.share)} of the matrix FLOPs of a forward pass have a size that is not a multiple"
        " of 8, which tensor cores, the matrix units of a GPU, process at a fraction of their speed. The largest share"
        f" is in {modules_text(place)}{line_text(place)}, with the {noun} {listed} in {place.shape}.",
        fix=_fix(place, sizes),
        module=place.module or None,
        caller=place.caller or None,
        evidence={**state.evidence(), "sizes": sizes, "padded": [padded(size) for size in sizes]},
        **lifecycle_fields(state.opened),
    )


def _fix(place: Place, sizes: list[int]) -> str:
    padding = " and ".join(f"{size} to {padded(size)}" for size in sizes)
    if "bmm" in place.op:
        return (
            f"Pad {padding} where batches are assembled (pad_to_multiple_of=8 in a tokenizer's collator), and mask the"
            f" padding; or use scaled_dot_product_attention{line_text(place)}, which pads internally."
        )
    return (
        f"Pad {padding} in {place.module or 'the model'}: add unused tokens to a vocabulary, or use the next multiple"
        " as hidden width."
    )


def padded(size: int) -> int:
    """Returns the next size that tensor cores process at full speed."""
    step = 64 if size >= LARGE_SIZE else 8
    return -(-size // step) * step


VERDICT = Verdict(
    id="misaligned-matmul",
    severity="ticket",
    title="Matrix sizes not multiples of 8",
    question="Does a relevant share of the matrix work have sizes that are not multiples of 8?",
    columns=(),
    events=("kernel.fallback", "autocast.entered"),
    needs=(Readings("kernels.census", 1, within=1000),),
    applies=under_autocast,
    state=Fallbacks,
    rows=False,
    judge=fallback_judge(_conclude, MIN_SHARE, _counts, tensor_cores=True),
    explains=("slower-than-fp32",),
)
