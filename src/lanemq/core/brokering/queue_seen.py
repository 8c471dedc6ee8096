"""What a group has seen of a queue's log at a broker that gives old offsets to new messages, and stores repeats.

**Marks** name messages of the log: the last one that a member has read, the last one that the group is done with, and
earlier ones, thinner with their distance. If the last one is in the log, so is all before it. If not, the earlier ones
say up to where the log is the same; what lies above that is not the group's progress any more.

**Stamps** are the newest of each producer that were read. A message above such a stamp whose number is not higher is a
repeat. A repeat below it is part of the finished ranges, which come in the same report. After a reset messages run
again, so the stamps are discarded; those of a log that was truncated are too, because lost messages are sent again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lanemq.model.log_marks import LastStamp, LogMark, SeenLog

MAX_MARKS = 24
"""Marks of one queue. Few: more is repeated after a truncation."""
MAX_PRODUCERS = 10_000
"""Producers of one queue; when they are more, the one that was silent longest is forgotten."""
MAX_STAMPS, LEAST_PRODUCERS = 250_000, 16
"""Stamps of all queues together, which share them equally, and what each queue may keep in any case. A stamp takes
about 270 bytes of memory. Small: the late copy of a message is delivered again if its producer was forgotten."""
MAX_NUMBER = 2**63 - 1
"""The largest number that can be stored."""
MAX_PRODUCER_CHARS = 255


class SavedSeen(NamedTuple):
    """What a group has seen, as stored: all marks, and the stamps that changed."""

    marks: tuple[LogMark, ...] = ()
    done: int = -1
    stamps: tuple[LastStamp, ...] = ()
    gone: tuple[str, ...] = ()
    """Producers that were forgotten."""
    discarded: bool = False
    """Whether all earlier stamps are deleted."""


class QueueSeen:
    """What one group has seen in one queue."""

    __slots__ = ("_changed", "_discarded", "_stamps", "done", "marks")

    def __init__(self, marks: Iterable[LogMark] = (), done: int = -1, stamps: Iterable[LastStamp] = ()) -> None:
        self.marks = tuple(marks)
        """Ascending."""
        self.done = done
        """The offset of the last message that the group is done with; -1 if there is none."""
        self._stamps = {each.producer: each for each in stamps}
        self._changed: dict[str, None] = {}
        self._discarded = False

    @property
    def stamps(self) -> tuple[LastStamp, ...]:
        return tuple(self._stamps.values())

    @property
    def last_read(self) -> LogMark | None:
        return self.marks[-1] if self.marks else None

    @property
    def last_done(self) -> LogMark | None:
        """The mark of the last message that the group is done with."""
        return next((mark for mark in reversed(self.marks) if mark.offset <= self.done), None)

    def take(self, report: SeenLog, most: int = MAX_PRODUCERS) -> None:
        """Take what a member has seen; `most` producers are kept."""
        if report.other_from >= 0:
            self.cut(report.other_from)
        for mark in (report.read, report.done):
            if mark is not None:
                others = (each for each in self.marks if each.offset != mark.offset)
                self.marks = tuple(sorted((*others, mark)))
        if report.done is not None:
            self.done = max(self.done, report.done.offset)
        self._thin_out()
        for stamp in filter(_is_plausible, report.stamps):
            known = self._stamps.pop(stamp.producer, None)
            newer = known is None or (stamp.epoch, stamp.sequence) > (known.epoch, known.sequence)
            self._stamps[stamp.producer] = stamp if newer or known is None else known
            self._changed[stamp.producer] = None
        while len(self._stamps) > most:
            producer = next(iter(self._stamps))
            del self._stamps[producer]
            self._changed[producer] = None

    def discard_stamps(self) -> None:
        self._stamps, self._changed, self._discarded = {}, {}, True

    def cut(self, end: int) -> None:
        """The group knows nothing of messages from `end` on any more."""
        self.marks = tuple(mark for mark in self.marks if mark.offset < end)
        self.done = min(self.done, end - 1)
        self.discard_stamps()

    def _thin_out(self) -> None:
        """Drop the mark that leaves the smallest gap, measured by its distance from the end.

        The two newest, and that of the last finished message, stay.
        """
        while len(self.marks) > MAX_MARKS:
            end, done = self.marks[-1].offset + 1, self.last_done
            candidates = [at for at in range(1, len(self.marks) - 2) if self.marks[at] is not done]
            at = min(candidates, key=lambda at: self._gap(at) / (end - self.marks[at].offset))
            self.marks = self.marks[:at] + self.marks[at + 1 :]

    def _gap(self, at: int) -> int:
        return self.marks[at + 1].offset - self.marks[at - 1].offset

    # saving

    def take_unsaved(self) -> SavedSeen:
        """Everything that has to be written; it counts as saved from now on."""
        changed, discarded, self._changed, self._discarded = self._changed, self._discarded, {}, False
        stamps = tuple(self._stamps[each] for each in changed if each in self._stamps)
        gone = tuple(each for each in changed if each not in self._stamps)
        return SavedSeen(self.marks, self.done, stamps, gone, discarded)

    def not_saved(self, saved: SavedSeen) -> None:
        """What was taken could not be written."""
        self._changed = dict.fromkeys((*(each.producer for each in saved.stamps), *saved.gone, *self._changed))
        self._discarded = self._discarded or saved.discarded


def most_producers(queues: int) -> int:
    """How many producers a queue may keep, if so many queues have a progress."""
    return max(LEAST_PRODUCERS, min(MAX_PRODUCERS, MAX_STAMPS // max(1, queues)))


def _is_plausible(stamp: LastStamp) -> bool:
    """Whether a producer may have made a stamp. Others are left out: one that cannot be stored would keep everything
    that is saved with it from the disk, and a member cannot help what a program has sent."""
    numbers = (stamp.epoch, stamp.sequence, stamp.offset)
    return len(stamp.producer) <= MAX_PRODUCER_CHARS and all(0 <= number <= MAX_NUMBER for number in numbers)
