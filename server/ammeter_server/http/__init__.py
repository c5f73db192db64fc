"""HTTP concerns that all endpoints share."""
