"""Verdicts on values that a program computes beside its training: in validation, and in the rollouts of a policy."""
