"""The first message of an episode: instructions, tools, one worked example, the task."""
