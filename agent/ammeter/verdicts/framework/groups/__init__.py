"""Comparison of two groups of runs, each with several seeds."""
