"""The read API: one module for each kind of resource."""
