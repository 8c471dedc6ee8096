"""Creates, inspects and repairs: topics, groups, locks, parked lanes."""
