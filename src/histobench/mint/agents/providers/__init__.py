"""Formats of providers: how a conversation is put into a request, and how an answer is read."""
