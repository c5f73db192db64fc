"""Which loss a backward pass belongs to."""
