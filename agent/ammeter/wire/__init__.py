"""Frames, columns and rank lives: the formats that agent and server share."""
