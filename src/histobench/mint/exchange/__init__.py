"""Results for other programs: logs of Inspect, lines of turns; and theirs for the tables here."""
