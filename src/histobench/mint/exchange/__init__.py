"""Results for other programs: a dataset folder, logs of Inspect, traces; and theirs for the tables here."""
