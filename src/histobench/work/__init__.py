"""Units of work, the folder that holds them, and the engines that get them done; used by every track."""
