"""Messages that a broker stored twice, because the answer to the first attempt was lost.

A LaneMQ broker stores no repeats. An Apache broker does, and the producer stamp shows it: within a queue, the numbers
of one producer grow with the offset, so a message whose number is not above those before it was stored again. Delayed
messages and those of retry topics are exceptions, which the caller knows.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from lanemq.model.log_marks import LastStamp
from lanemq.model.stamp import Stamp

MAX_PRODUCERS = 10_000
"""Producers remembered for one queue; when they are more, the one that was silent longest is forgotten."""

MAX_REPORTED = 1_000
"""Stamps in one report, which has to stay below what a coordinator takes in a request; the rest follows."""


class _Newest(NamedTuple):
    place: tuple[int, int]
    """Epoch and number."""
    offset: int


class SeenStamps:
    """The newest stamp of each producer in one queue, up to some offset."""

    def __init__(self, former: Iterable[LastStamp] = ()) -> None:
        """`former` are those that former owners have read."""
        self._former = {each.producer: _Newest((each.epoch, each.sequence), each.offset) for each in former}
        self._newest: dict[str, _Newest] = {}
        self._unreported: dict[str, None] = {}

    def is_repeat(self, stamp: Stamp | None, offset: int) -> bool:
        """Whether the message at this offset is a repeat of one at a lower offset. Remembers it if it is not.

        A message that is read again at its own offset is not a repeat.
        """
        if stamp is None:
            return False
        place = (stamp.epoch, stamp.sequence)
        former = self._former.get(stamp.producer)
        if former is not None and place <= former.place and offset > former.offset:
            return True
        newest = self._newest.pop(stamp.producer, None)
        if newest is not None and place <= newest.place:
            self._newest[stamp.producer] = newest
            return offset > newest.offset
        self._newest[stamp.producer] = _Newest(place, offset)
        self._unreported[stamp.producer] = None
        if len(self._newest) > MAX_PRODUCERS:
            oldest = next(iter(self._newest))
            del self._newest[oldest]
            self._unreported.pop(oldest, None)
        return False

    def unreported(self) -> tuple[LastStamp, ...]:
        """What was read since it was reported, `MAX_REPORTED` at most."""
        newest = ((producer, self._newest[producer]) for producer in islice(self._unreported, MAX_REPORTED))
        return tuple(LastStamp(producer, *each.place, each.offset) for producer, each in newest)

    def reported(self, stamps: Iterable[LastStamp]) -> None:
        """These are known now; what was read since then is not."""
        for producer, epoch, sequence, offset in stamps:
            if self._newest.get(producer) == _Newest((epoch, sequence), offset):
                self._unreported.pop(producer, None)

    def report_again(self) -> None:
        """What was reported may be lost."""
        self._unreported = dict.fromkeys(self._newest)
