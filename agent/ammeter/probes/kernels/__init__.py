"""Counts the operators of a forward pass: dtypes, casts and fallbacks."""
