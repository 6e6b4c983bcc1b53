"""Images from disk to memory, decoded by workers that never import torch."""
