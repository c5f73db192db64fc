"""The commands of ammeter-server."""
