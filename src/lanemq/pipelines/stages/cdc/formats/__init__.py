"""The formats of change events."""
