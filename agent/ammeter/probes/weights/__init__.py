"""Reads weights: dtypes, updates, copies, non-finite values."""
