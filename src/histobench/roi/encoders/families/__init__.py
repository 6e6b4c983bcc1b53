"""One driver per family of networks: how to build one, run it, and read its published tensor names."""
