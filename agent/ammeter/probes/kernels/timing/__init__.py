"""Times the operators of a census."""
