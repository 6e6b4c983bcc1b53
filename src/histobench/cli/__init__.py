"""Command line: one file per verb; a verb parses, calls one function, prints."""
