"""Recorded episodes played again: the proof that loop, sandbox and checkers are the published ones."""
