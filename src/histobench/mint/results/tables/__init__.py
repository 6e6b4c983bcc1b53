"""The tables of finished episodes: the published one, by group, by expert, by dialect."""
