"""Callbacks on torch objects; no other package patches torch."""
