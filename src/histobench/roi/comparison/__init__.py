"""Stored runs in, statistics out: intervals of every run, comparisons of encoders, sample sizes."""
