"""Finds weights, losses and calls whose dtype is not the one that was asked for or that training needs."""
