"""How a group recognises the log that it has read, and the repeats in it.

On an Apache cluster an old offset may have a new message: after a fail-over that truncated the log, or in a topic that
was deleted and created again.
"""

from typing import NamedTuple


class LogMark(NamedTuple):
    """A message by what no other one has. If it is in a log, everything before it is the same too."""

    offset: int
    position: int
    """In the log of its broker (RocketMQ's physical offset)."""
    stored_ms: int
    id: str
    """The unique key that its producer gave it; empty if it has none."""


class LastStamp(NamedTuple):
    """The newest stamp of a producer that was read in a queue, and where."""

    producer: str
    epoch: int
    sequence: int
    offset: int


class SeenLog(NamedTuple):
    """What a member has seen of a queue's log since its last report."""

    read: LogMark | None = None
    """The last message that it has read."""
    done: LogMark | None = None
    """The last message that is finished or parked: everything that the group is done with is not above it."""
    stamps: tuple[LastStamp, ...] = ()
    """Of the producers whose newest stamp has changed."""
    other_from: int = -1
    """From this offset on, the log was not the one that former members had read, when the member took the queue."""


class OtherLog(NamedTuple):
    """A message is not the one that the group has read at its offset."""

    read: LogMark
    there: LogMark | None
    """None: there is no message."""


def differs(mark: LogMark, there: LogMark | None, first: int) -> OtherLog | None:
    """Compare a mark with the message at its offset, in a queue whose first message is at `first`.

    A message that retention has deleted cannot be compared, and counts as the same.
    """
    if mark.offset < first or there == mark:
        return None
    return OtherLog(mark, there)
