"""Kills programs with short steps and compares their last step with that of the collector."""
