"""Reads checkpoints, in any storage, and examines what they contain. Never in a training process."""
