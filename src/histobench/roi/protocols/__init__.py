"""Protocols: pure functions from features and labels to class probabilities of the test images."""
