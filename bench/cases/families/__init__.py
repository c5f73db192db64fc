"""Cases by family; each module has CASES."""
