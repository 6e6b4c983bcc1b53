"""Intervals, paired tests, ranks and power: arrays and callables in, numbers out, one procedure per file."""
