"""What both tracks stand on: errors, atomic files, results store, statistics, progress."""
