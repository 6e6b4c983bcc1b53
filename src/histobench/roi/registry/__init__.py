"""Public datasets by name: what they are, where they lie, how they are fetched, checked and split."""
