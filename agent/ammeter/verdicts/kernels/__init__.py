"""Verdicts on kernels: an operator whose result depends on which implementation computes it."""
