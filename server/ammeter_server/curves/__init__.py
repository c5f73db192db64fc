"""Reads stored columns and turns them into curves."""
