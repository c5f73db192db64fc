"""Limits of loss scales and of consecutive skipped steps, shared by several verdicts."""

from __future__ import annotations

MAX_ACCIDENTAL_SKIPS = 5
"""Maximum consecutive skipped steps at a previously working scale that may be an accident. The last of them used 1/16
of that scale, so a gradient that only needs a smaller scale would have grown 16-fold from one step to the next."""

MIN_USEFUL_SCALE = 1.0
"""Scale below which a new scaler without a good step is no longer calibrating. At 1 nothing is scaled, and float16
gradients that still overflow there would overflow without a scaler."""

INVERSE_INFINITE_SCALE = 2.0**-128
"""Largest power of two whose inverse, 2^128, is Inf in float32 (above 3.4e38). GradScaler searches the gradients for
Inf before it multiplies them by the inverse, so it finds none, and good gradients become NaN."""
