"""Pure functions from features and labels to per-sample probabilities."""
