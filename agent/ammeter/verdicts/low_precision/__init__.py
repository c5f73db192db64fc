"""Verdicts on kernels in low precision."""
