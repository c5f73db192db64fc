"""What is known of a run, derived from its streams."""
