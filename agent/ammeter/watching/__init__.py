"""Starts a session from one line in a training program."""
