"""Writes data frames to topics."""
