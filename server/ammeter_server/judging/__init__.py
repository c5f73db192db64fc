"""Evaluates the verdicts of live runs and opens or closes incidents."""
