"""Findings, lifecycle and run comparison, shared by all verdicts."""
