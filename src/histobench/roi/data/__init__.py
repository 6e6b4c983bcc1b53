"""Datasets in: CSV, folders, class maps, prompts, checks, and the synthetic demo tiles."""
