"""Images to feature sets: decode, transform, forward, store."""
