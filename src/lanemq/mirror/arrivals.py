"""What one target queue contains of each source queue. Pure.

It is learned by reading the queue (`see`), and kept up to date while copying (`stored`, `passed`). It is exact, because
one request at a time is under way to the queue and its answer is awaited.
"""

from collections.abc import Iterable

from lanemq.client.copies import CopyOrigin, origin_of
from lanemq.mirror.origin import Reached, Watermarks, table_of, watermarks_of, with_watermarks
from lanemq.model.errors import OrderError
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import find_stamp

FIRST_EPOCH = 1
"""The epoch of a source queue's stamps in a target queue that never had a message."""


class LayoutChanged(OrderError):
    """A side has another number of queues than when the copies were made: keys would move to other queues."""


class Arrivals:
    """One target queue."""

    def __init__(self, mirror: str, topic: str, counts: tuple[int, int], new_epoch: int) -> None:
        """`counts` are the queues of source and target. `new_epoch` is for source queues that are not found here."""
        self._mirror = mirror
        self._topic = topic
        self._counts = counts
        self._new_epoch = new_epoch
        self._reached: dict[MessageQueue, Reached] = {}
        self.has_watermarks = False

    def see(self, text: str) -> None:
        """A message of the queue, by its properties; in the order of offsets.

        Raises `LayoutChanged` if a side had another number of queues when it was copied.
        """
        origin = origin_of(text, self._topic)
        if origin is None or origin.mirror != self._mirror:
            return
        self._see_copy(text, origin)
        marks = watermarks_of(text, self._mirror)
        if marks is not None:
            self._see_watermarks(marks)

    def _see_copy(self, text: str, origin: CopyOrigin) -> None:
        stamp, known = find_stamp(text), self._reached.get(origin.queue)
        if stamp is not None and (known is None or origin.offset >= known.next):
            self._reached[origin.queue] = Reached(origin.offset + 1, stamp.epoch, stamp.sequence + 1)

    def _see_watermarks(self, marks: Watermarks) -> None:
        if (marks.source_queues, marks.target_queues) != self._counts:
            before, now = (marks.source_queues, marks.target_queues), self._counts
            raise LayoutChanged(
                f"topic {self._topic!r} was copied from {before[0]} to {before[1]} queues and now has {now[0]} and "
                f"{now[1]}: start the brokers that are missing, or use another --name and an empty topic"
            )
        self.has_watermarks = True
        for broker, queues in marks.reached.items():
            for queue_id, reached in queues.items():
                queue, at = MessageQueue(self._topic, broker, queue_id), Reached(*reached)
                known = self._reached.get(queue)
                if known is None or at.next > known.next:
                    self._reached[queue] = at

    def begin(self, starts: Iterable[tuple[MessageQueue, int]]) -> None:
        """Enters the source queues that were not found here, each with the offset at which it starts.

        If the queue has watermarks, they name every source queue that ever had a message in it, so others had none.
        Otherwise its copies may have expired while the broker still knows their stamps, and a new epoch is needed:
        under the old one, the broker would take new messages for repeats.
        """
        epoch = FIRST_EPOCH if self.has_watermarks else self._new_epoch
        for queue, start in starts:
            self._reached.setdefault(queue, Reached(start, epoch, 0))

    def reached(self, source: MessageQueue) -> Reached:
        return self._reached[source]

    def text_with_watermarks(self, text: str, source: MessageQueue, last: int, count: int) -> str:
        """The properties of the last message of a request: what the queue contains once the request is stored."""
        after = {**self._reached, source: self._after(source, last, count)}
        return with_watermarks(text, Watermarks(self._mirror, *self._counts, table_of(after)))

    def stored(self, source: MessageQueue, last: int, count: int) -> None:
        """A request was stored: `count` messages up to offset `last` of the source queue."""
        self._reached[source] = self._after(source, last, count)

    def passed(self, source: MessageQueue, offset: int) -> None:
        """Nothing of the source queue below `offset` is missing here."""
        at = self._reached[source]
        self._reached[source] = at._replace(next=max(at.next, offset))

    def forgotten(self, source: MessageQueue) -> None:
        """The broker has forgotten the stamps of the source queue: its next message begins a new epoch."""
        at = self._reached[source]
        self._reached[source] = Reached(at.next, max(at.epoch + 1, self._new_epoch), 0)

    def _after(self, source: MessageQueue, last: int, count: int) -> Reached:
        at = self._reached[source]
        return Reached(last + 1, at.epoch, at.sequence + count)


def first_needed(sources: Iterable[MessageQueue], arrivals: Iterable[Arrivals]) -> dict[MessageQueue, int]:
    """Where each source queue is read from: the first offset that some target queue may miss."""
    every = tuple(arrivals)
    return {queue: min(each.reached(queue).next for each in every) for queue in sources}
