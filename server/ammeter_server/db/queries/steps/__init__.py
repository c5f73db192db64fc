"""Queries on step data: rows of streams from segments and blocks."""
