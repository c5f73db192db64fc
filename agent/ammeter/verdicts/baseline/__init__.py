"""Verdicts that compare a run with its baseline."""
