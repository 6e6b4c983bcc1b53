"""The MINT track: language models as agents in multi-turn tasks."""
