"""Change data capture: a table that follows its source, one row per key."""
