"""Finished episodes: how they are stored, counted and compared."""
