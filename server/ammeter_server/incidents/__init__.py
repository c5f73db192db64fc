"""The lifecycle of an incident and its wording."""
