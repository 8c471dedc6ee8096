"""Reads ranges of queues: batch and streaming readers, planning, offsets, pulls."""
