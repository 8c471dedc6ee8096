"""Holds queues: assignment, leases, pulls, commits, parked lanes, hand-over."""
