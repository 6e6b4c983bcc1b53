"""Encoders as data: the zoo, the registry, the weights resolver and one driver per family."""
