"""HTTP concerns that every endpoint shares."""
