"""Counts the micro-batches whose losses have no target."""
