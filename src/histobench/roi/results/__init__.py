"""The results folder: the documented files out, stored runs back in."""
