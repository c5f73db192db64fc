"""Searches the operator that made a loss non-finite in the loss's autograd graph, and runs it again."""
