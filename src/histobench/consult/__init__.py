"""Consult: an agent held fixed, and the image encoder behind its tools as the randomised variable."""
