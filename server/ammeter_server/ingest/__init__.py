"""Frames come in: validation, reading, and one writer that commits."""
