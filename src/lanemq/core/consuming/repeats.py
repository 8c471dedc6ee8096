"""Messages that a broker stored twice, because the answer to the first attempt was lost.

A LaneMQ broker stores no repeats. An Apache broker does, and the producer stamp shows it: within a queue, the numbers
of one producer grow with the offset, so a message whose number is not above those before it was stored again.
"""

from typing import NamedTuple

from lanemq.model.stamp import Stamp

MAX_PRODUCERS = 10_000
"""Producers remembered for one queue; when they are more, the one that was silent longest is forgotten."""


class _Newest(NamedTuple):
    place: tuple[int, int]
    """Epoch and number."""
    offset: int


class SeenStamps:
    """The newest stamp of each producer in one queue, up to some offset."""

    def __init__(self) -> None:
        self._newest: dict[str, _Newest] = {}

    def is_repeat(self, stamp: Stamp | None, offset: int) -> bool:
        """Whether the message at this offset is a repeat of one at a lower offset. Remembers it if it is not.

        A message that is read again at its own offset is not a repeat.
        """
        if stamp is None:
            return False
        place = (stamp.epoch, stamp.sequence)
        newest = self._newest.pop(stamp.producer, None)
        if newest is not None and place <= newest.place:
            self._newest[stamp.producer] = newest
            return offset > newest.offset
        self._newest[stamp.producer] = _Newest(place, offset)
        if len(self._newest) > MAX_PRODUCERS:
            del self._newest[next(iter(self._newest))]
        return False
