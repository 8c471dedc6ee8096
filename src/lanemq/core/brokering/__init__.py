"""The broker's rules: locks, members, offsets, duplicates, long polls, delays, parked lanes."""
