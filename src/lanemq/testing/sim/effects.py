"""A simulated table that handlers write to, and that checks the order in which they do.

Handlers write as docs/guarantees.md asks: each row has the epoch, and a smaller one is refused. The order is checked
without the checker, by numbers that the producers put into their messages.
"""

import zlib
from dataclasses import dataclass, field

from lanemq.client.message import Message
from lanemq.history import History, Place
from lanemq.testing.sim.trace import Trace

Line = tuple[str, str, str]
"""Topic, key and run of a producer, within which numbers must grow."""


def is_as_sent(message: Message) -> bool:
    """Whether body and key are those that the producer sent."""
    value = message.value(dict)
    return bool(value["sum"] == sum_of(message.key or "", value["from"], value["n"]))


def sum_of(key: str, process: str, number: int) -> int:
    """A checksum that a producer puts into a message, so that a consumer can tell whether it was changed."""
    return zlib.crc32(f"{key} {process} {number}".encode())


@dataclass(slots=True)
class SimTable:
    """The table of one group."""

    group: str
    trace: Trace
    ordered: bool = True
    """Without dead letters, no message of a key may be written before an earlier one."""
    problems: list[str] = field(default_factory=list)
    _epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    _last: dict[Line, int] = field(default_factory=dict)
    _places: dict[tuple[str, int, str], int] = field(default_factory=dict)
    _dropped: dict[str, int] = field(default_factory=dict)

    def forget(self, topic: str, end: int) -> None:
        """The topic was deleted, with everything below position `end` of the log; a new one begins at offset 0.

        A producer that has no answer sends its messages again, and the new topic has not seen them.
        """
        self._dropped[topic] = end
        self._last = {line: number for line, number in self._last.items() if line[0] != topic}
        for place in [place for place in self._places if place[0] == topic]:
            del self._places[place]

    def write(self, message: Message, history: History) -> None:
        """One transaction: compares the epoch and the offset, then writes."""
        if message.record.position < self._dropped.get(message.topic, 0):
            return
        if not is_as_sent(message):
            self.problems.append(f"{self.group} got {message}, which was never sent like this")
        asked = history.now()
        queue = (message.queue.topic, message.queue.queue_id)
        key = message.key or ""
        if message.epoch < self._epochs.get(queue, 0):
            self.trace.count("write of a stale owner refused")
            return
        self._epochs[queue] = message.epoch
        if message.queue_offset <= self._places.get((*queue, key), -1):
            return
        self._places[(*queue, key)] = message.queue_offset
        place = Place(self.group, *queue, message.queue_offset)
        history.effect(place, key, self.group, epoch=message.epoch, asked=asked)
        self._compare(message, key)

    def _compare(self, message: Message, key: str) -> None:
        value = message.value(dict)
        line, number = (message.topic, key, str(value["from"])), int(value["n"])
        before = self._last.get(line, 0)
        if number <= before:
            self.problems.append(f"{self.group}: {line} wrote {number} after {before}")
        self._last[line] = number
