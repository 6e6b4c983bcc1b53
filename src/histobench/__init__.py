"""histobench: which pathology foundation model should I use, and how sure can I be?"""

__version__ = "0.1.0"
