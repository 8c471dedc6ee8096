"""Turns the bytes of a pull into Arrow columns."""
