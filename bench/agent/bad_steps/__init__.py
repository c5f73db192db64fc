"""Measures what a bad step costs: the search of its graph, and the trial of the operator."""
