"""The read API: one module per kind of resource."""
