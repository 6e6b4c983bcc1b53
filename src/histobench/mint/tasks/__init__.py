"""Tasks: a prompt, a reference and a checker; the eight datasets of the benchmark."""
