"""Facts of the process and its settings."""
