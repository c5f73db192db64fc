"""Counters of a stream and of its run: the same figures for the report and the collector."""
