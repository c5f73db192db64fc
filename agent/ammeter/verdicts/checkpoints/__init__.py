"""Verdicts on checkpoints."""
