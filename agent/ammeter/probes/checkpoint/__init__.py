"""Finds saved checkpoints and checks their contents."""
