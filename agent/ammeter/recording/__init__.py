"""Builds one row per training step."""
