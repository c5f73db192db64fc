"""Verdicts on NaN and Inf."""
