"""Files: the commit log, its indexes, and what survives a crash."""
