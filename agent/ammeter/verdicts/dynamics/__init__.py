"""Verdicts on training dynamics."""
