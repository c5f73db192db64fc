"""Sends journals to the collector, or mirrors them to disk; process.py starts it."""
