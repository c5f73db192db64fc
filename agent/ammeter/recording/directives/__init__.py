"""Readings that a person asks of a live run: the one place that reads directives and hands them to probes."""
