"""Routes for the handling of incidents: their context and reach, channels and deliveries."""
