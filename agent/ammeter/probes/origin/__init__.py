"""Finds the origin of a bad step: inputs, forward pass, backward or weights."""
