"""Finds call orders and configurations that break training without an error.

Most kinds are reported once, with the line of the call.
"""
