"""Limits of a loss scale, and of the skipped steps in a row at one, that several verdicts share."""

from __future__ import annotations

MAX_ACCIDENTAL_SKIPS = 5
"""Skipped steps in a row, at a scale that worked just before, that are no accident: the last of them tried a scale
of 1/16 of it, so a gradient that only needs a smaller scale would have grown 16-fold from one step to the next."""

MIN_USEFUL_SCALE = 1.0
"""Scale below which a fresh scaler that never had a good step is not calibrating any more: at 1 nothing is scaled,
and float16 gradients that still overflow there would overflow without a scaler."""

INVERSE_INFINITE_SCALE = 2.0**-128
"""The largest power of two whose inverse, 2^128, is above 3.4e38 and so Inf in float32. GradScaler looks for Inf in the
gradients before it multiplies them by the inverse, so it finds none, and good gradients turn NaN."""
