"""Queries of the handling of incidents: related runs, and what people ask of live runs."""
