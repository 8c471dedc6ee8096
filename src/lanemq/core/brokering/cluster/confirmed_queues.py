"""Which queues of a topic may get owners: those that it had at first, and those that an operator confirmed.

Where queues are added, keys move: newer messages of a key may be in a new queue while older ones wait in another. So
new queues wait, as messages of moved keys wait in producers, until somebody who knows that the older ones are done
says so. The layout of an ordered topic counts from the start, also for a broker that is away then.
"""

from collections.abc import Iterable, Iterator

from lanemq.model.queue import MessageQueue


class ConfirmedQueues:
    """Of all topics."""

    def __init__(self, queues: Iterable[MessageQueue] = ()) -> None:
        self._of: dict[str, set[MessageQueue]] = {}
        self.confirm(queues)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._of.get(queue.topic, ())

    def __iter__(self) -> Iterator[MessageQueue]:
        return iter(sorted(queue for queues in self._of.values() for queue in queues))

    def see(self, topic: str, queues: Iterable[MessageQueue]) -> bool:
        """Confirm the queues of a topic that was never seen; returns whether that was so."""
        if topic in self._of:
            return False
        self._of[topic] = set(queues)
        return True

    def confirm(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._of.setdefault(queue.topic, set()).add(queue)
