"""A static web site from a results folder."""
