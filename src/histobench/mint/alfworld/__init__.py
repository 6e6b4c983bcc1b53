"""The ALFWorld household simulator: its games, and a side process that plays them."""
