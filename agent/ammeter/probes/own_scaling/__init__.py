"""Follows a loss scale that the program applies itself, and finds mistakes in its use.

The factor of the loss is in its graph. A few elements of the gradients, before and after, show where they are divided.
"""
