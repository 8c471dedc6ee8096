"""Reads topics in Spark: batch and streaming readers, planning, pulls."""
