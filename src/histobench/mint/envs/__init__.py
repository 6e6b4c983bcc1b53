"""Environments: the turn loop as a pure state machine, and what surrounds it."""
