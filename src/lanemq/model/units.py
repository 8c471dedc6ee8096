"""Types for numbers that must not be mixed up."""

import re
from typing import Final, NewType, Protocol, TypeAlias

from lanemq.model.errors import InvalidOption
from lanemq.model.wording import shown

Millis = NewType("Millis", int)
"""Milliseconds: a point on the monotonic clock (`now`), a wall time, or a span; the name says which."""

QueueOffset = NewType("QueueOffset", int)
"""A place in one queue. Always the next one to read, never the last one read."""

LogPosition = NewType("LogPosition", int)
"""A byte position in a broker's commit log (RocketMQ's physical offset)."""

Epoch = NewType("Epoch", int)
"""Grows with every change of a queue's owner; a stale owner is known by its smaller one. 0 means none."""


MAX_SECONDS: Final = 100 * 365 * 86400.0
"""The longest duration, a hundred years. The timers of the operating system fail at about three times as much, and at
infinity."""

_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_UNIT_SECONDS: Final = {None: 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """The seconds of a text such as `90`, `500ms`, `30s`, `15m`, `72h` or `3d`. A number without a unit is seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidOption(f"{shown(text)} is not a duration: write seconds (90), or a unit: 500ms, 90s, 10m, 72h, 3d")
    span = float(match[1]) * _UNIT_SECONDS[match[2]]
    if span > MAX_SECONDS:
        raise InvalidOption(f"{shown(text)} is too long a duration: at most 36500d")
    return span


class TimeSpan(Protocol):
    """A `datetime.timedelta`, by its method: the core does not import `datetime`."""

    def total_seconds(self) -> float: ...


Seconds: TypeAlias = float | TimeSpan
"""A duration as users give it: a number of seconds, or a `timedelta`."""


def to_seconds(duration: Seconds) -> float:
    if isinstance(duration, int | float):
        return duration
    try:
        return duration.total_seconds()
    except AttributeError:
        raise InvalidOption(f"{shown(duration)} is not a duration: use a number of seconds, or a timedelta") from None


def to_millis(duration: Seconds) -> Millis:
    """A duration, as users give it, in milliseconds, rounded to the nearest."""
    return Millis(round(to_seconds(duration) * 1000))
