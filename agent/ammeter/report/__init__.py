"""Reads journals and reports the state and the findings of a run."""
