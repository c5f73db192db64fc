"""Settings, prices and notification routes."""
