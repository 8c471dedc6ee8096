"""Between the handlers and the log: group commit, checkpoints, delays, parked lanes."""
