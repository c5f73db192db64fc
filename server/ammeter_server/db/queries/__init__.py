"""Queries on the tables, one module for each reader."""
