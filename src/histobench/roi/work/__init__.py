"""Units of work: a plan cut into pieces that any machine can do, once or twice, with the same outcome."""
