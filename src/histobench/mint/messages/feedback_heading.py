"""The line above an expert's words, in what the agent reads and in every transcript."""

FEEDBACK_HEADING = "\nExpert feedback:\n"
