"""One training step becomes one row."""
