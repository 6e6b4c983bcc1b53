"""The same episodes through the Inspect framework (the extra `inspect`); nothing else imports this room."""
