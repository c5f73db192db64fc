"""Calls in an order, and set-ups, that break training quietly. Each kind is reported once, with its line."""
