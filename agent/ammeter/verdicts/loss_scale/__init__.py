"""Verdicts on the loss scale."""
