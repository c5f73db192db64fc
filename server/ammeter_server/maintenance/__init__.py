"""Compaction, retention and deletion in the background."""
