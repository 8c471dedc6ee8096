"""Types for numbers that must not be mixed up."""

from typing import NewType

Millis = NewType("Millis", int)
"""Milliseconds: a point on the monotonic clock (`now`), a wall time, or a span; the name says which."""

QueueOffset = NewType("QueueOffset", int)
"""A place in one queue. Always the next one to read, never the last one read."""

LogPosition = NewType("LogPosition", int)
"""A byte position in a broker's commit log (RocketMQ's physical offset)."""

Epoch = NewType("Epoch", int)
"""Grows with every change of a queue's owner; a stale owner is known by its smaller one. 0 means none."""


def to_millis(seconds: float) -> Millis:
    """Converts a duration in seconds, as users give it, to milliseconds, rounded to the nearest."""
    return Millis(round(seconds * 1000))
