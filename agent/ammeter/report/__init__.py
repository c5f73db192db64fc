"""Reads journals and reports what happened in a run."""
