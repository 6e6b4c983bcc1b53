"""Runs: which episodes, who plays them, what is on disk, how a killed run goes on."""
