"""Reads gradients: norms, statistics, non-finite elements and the spectrum of exponents."""
