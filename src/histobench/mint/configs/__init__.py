"""What is run on what: datasets, tools, budgets, feedback, and the files that describe a run."""
