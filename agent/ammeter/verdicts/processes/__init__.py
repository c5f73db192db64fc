"""Verdicts on processes and ranks."""
