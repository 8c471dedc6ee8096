"""Which target queue a message goes to. Pure.

Invariant: the messages of a key that is in one queue of the source go to one queue of the target, which depends on
nothing but the queues of both sides. Every session decides the same.
"""

from collections.abc import Sequence

from lanemq.client.topic_route import TopicRoute
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.queue import MessageQueue


def mapping_of(source: TopicRoute, target: TopicRoute) -> "QueueMapping":
    """The mapping of a topic. A side that refuses sends may have no queues to publish to."""
    return QueueMapping(source.publish if source.ordered else source.subscribe, target.publish or target.subscribe)


class QueueMapping:
    """The queues of one topic on both sides, each in the order in which keys are hashed to them."""

    def __init__(self, source: Sequence[MessageQueue], target: Sequence[MessageQueue]) -> None:
        self.target = tuple(target)
        self.counts = len(source), len(target)
        self.same = len(source) == len(target)
        """Queue *i* goes to queue *i*. The key's hash, or the producer's own selector, decided at the source."""
        self._index = {queue: number for number, queue in enumerate(source)}

    def queue_for(self, source: MessageQueue, key: str | None) -> MessageQueue:
        """The target queue of a message of `source`."""
        if key is None or self.same:
            # A queue that takes no more messages is not in the list, and is still read.
            return self.target[self._index.get(source, source.queue_id) % len(self.target)]
        return pick_queue(key, self.target)
