"""A plan of the ROI track as units of work that any machine can do, once or twice, with the same outcome."""
