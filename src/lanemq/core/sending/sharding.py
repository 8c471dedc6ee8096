"""Which queue a key belongs to.

The same key must reach the same queue from every producer in every process and language. `pick_queue` is therefore
RocketMQ's `SelectMessageQueueByHash`, bit for bit. Queues are used in the topic's published order; sorting them here
would disagree with Java producers. A change of the queue count moves keys; this module does not handle that.
"""

from collections.abc import Callable, Iterator, Sequence

from lanemq._fast import compiled
from lanemq.model.errors import InvalidOption
from lanemq.model.java_hash import java_int_hash, java_string_hash
from lanemq.model.queue import MessageQueue

Selector = Callable[[Sequence[MessageQueue], object, object], MessageQueue]
"""RocketMQ's MessageQueueSelector: takes queues, message and `arg` of the send call, and returns the queue."""


def pick_queue(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """The queue that RocketMQ's hash selector picks for the text of a key (`model.keys`)."""
    return queues[_index(text_hash(key), queues)]


def by_hash(queues: Sequence[MessageQueue], message: object, arg: object) -> MessageQueue:
    """RocketMQ's `SelectMessageQueueByHash`: picks by the hash that Java computes for `arg`.

    An `int` is hashed as Java's `Integer` or `Long`, so it picks another queue than the same digits as text do.
    """
    if isinstance(arg, str):
        return pick_queue(arg, queues)
    if isinstance(arg, bool) or not isinstance(arg, int):
        raise InvalidOption(f"by_hash needs text or an integer, not {arg!r}: pass str(...) of it")
    return queues[_index(java_int_hash(arg), queues)]


def by_int_modulo(queues: Sequence[MessageQueue], message: object, arg: object) -> MessageQueue:
    """Picks by a number modulo the queue count, without hashing. The number may have any size and sign."""
    if isinstance(arg, bool) or not isinstance(arg, int):
        raise InvalidOption(f"by_int_modulo needs an integer, not {arg!r}: use by_hash for text")
    return queues[_index(arg, queues)]


def round_robin(counter: Iterator[int]) -> Selector:
    """A selector that uses the queues in turn. It spreads a key over all queues, so it keeps no order."""

    def select(queues: Sequence[MessageQueue], message: object, arg: object) -> MessageQueue:
        return queues[_index(next(counter), queues)]

    return select


@compiled
def text_hash(text: str) -> int:
    """Java's hash of a string."""
    return java_string_hash(text)


def _index(number: int, queues: Sequence[MessageQueue]) -> int:
    # Java takes the remainder toward zero, then its absolute value. With unbounded integers that equals abs() first;
    # Python's own `%` of a negative number would pick another queue.
    if not queues:
        raise InvalidOption("no queue to choose from: the topic has no writable queue, look at its route")
    return abs(number) % len(queues)
