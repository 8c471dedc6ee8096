"""Compares the log of a queue with what the group has read of it, at an Apache broker of a coordinated group.

A log that was truncated at a fail-over, or a topic that was created again, gives old offsets to new messages. The
coordinator keeps marks of what the group has read; the owner compares them when it takes a queue, and what it has read
itself after every lost connection and at every other master, before it pulls there.

If only unfinished messages were lost, the owner takes the queue again from the committed offset. If messages that the
group is done with are not there, it cannot be known which new messages were passed: the queue stops, until an operator
drops what lies above the last message that is the same.
"""

from typing import NamedTuple

from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.core.consuming.repeats import SeenStamps
from lanemq.model.errors import LogReplaced
from lanemq.model.log_marks import LastStamp, LogMark, OtherLog, SeenLog, differs
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address


class FormerRead(NamedTuple):
    """What former owners have read of a queue's log, as far as it is still there."""

    read: LogMark | None = None
    stamps: tuple[LastStamp, ...] = ()
    other_from: int = -1
    """As in `SeenLog`."""


class ReadLog:
    """What this member has read of one queue's log."""

    def __init__(self, former: FormerRead | None = None) -> None:
        """`former` is None if the log is not compared."""
        self.is_compared = former is not None
        former = former or FormerRead()
        self.read = former.read
        """The last message that was read, also by former owners."""
        self.stamps = SeenStamps(former.stamps) if former.stamps else None
        """Of what was pulled, if repeats are dropped; None before the first pull and after a reset."""
        self.master: Address | None = None
        """The master whose log was compared; None: it is to be compared before the next pull."""
        self.other_from = former.other_from
        self.is_other = False
        """What was read is not there any more: the queue is given up, and taken again from the committed offset."""

    def report(self, done: LogMark | None, *, by_key: bool) -> SeenLog:
        """What the coordinator does not know; `done` is the last finished message.

        A queue that is one lane has no finished ranges, which tell of repeats below the newest stamps.
        """
        stamps = self.stamps.unreported() if self.stamps is not None and by_key else ()
        return SeenLog(self.read, done, stamps, self.other_from)

    def reported(self, seen: SeenLog) -> None:
        self.other_from = -1
        if self.stamps is not None:
            self.stamps.reported(seen.stamps)

    def report_again(self) -> None:
        """What was reported may be lost, and the log may be another one."""
        self.master = None
        if self.stamps is not None:
            self.stamps.report_again()


class LogComparison:
    """The requests of comparisons."""

    def __init__(self, group: str, calls: ConsumerCalls) -> None:
        self._group = group
        self._calls = calls

    async def former(self, queue: MessageQueue) -> FormerRead:
        """What former owners have read; raises `LogReplaced` if what the group is done with is not there."""
        seen = await self._calls.seen(queue)
        if seen.read is None or await self.other(queue, seen.read) is None:
            return FormerRead(seen.read, seen.stamps)
        if seen.done is None:
            return FormerRead(other_from=0)
        if (other := await self.other(queue, seen.done)) is not None:
            raise LogReplaced(self._text(queue, other))
        return FormerRead(seen.done, other_from=seen.done.offset + 1)

    async def other(self, queue: MessageQueue, mark: LogMark) -> OtherLog | None:
        """What the log has in place of a message that was read; None if it has that message."""
        there = await self._calls.mark(queue, QueueOffset(mark.offset))
        if there == mark:
            return None
        return differs(mark, there, await self._calls.first_offset(queue))

    def _text(self, queue: MessageQueue, other: OtherLog) -> str:
        what = "no message" if other.there is None else "another message"
        return (
            f"{queue} has {what} at offset {other.read.offset}, where the group has finished one: its broker lost the "
            f"end of the log, or the topic was created anew. To see what that concerns, and to continue from the last "
            f"message that is the same: lanemq group compare {self._group}"
        )
