"""Verdicts on the order of calls."""
