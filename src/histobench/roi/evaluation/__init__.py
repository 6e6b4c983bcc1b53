"""Features to results: runs the asked tasks and writes what they give."""
