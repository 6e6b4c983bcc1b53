"""What was computed before, found by content."""
