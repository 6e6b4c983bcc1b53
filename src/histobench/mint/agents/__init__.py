"""Agents write the next message of an episode - an endpoint, a recording, a person."""
