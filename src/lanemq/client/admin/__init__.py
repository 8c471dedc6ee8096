"""Administration: topics, groups, offsets, locks and parked lanes."""
