"""Tokens, callers, access to projects, and limits of readers."""
