"""Facts about a run, derived from its streams."""
