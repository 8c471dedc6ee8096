"""The queues that the keys of a topic are spread over, and whether they may be used.

A key's queue is its hash modulo the length of a list of queues, so every producer must use the same list, also while a
broker of it is away. The list comes from the topic's *layout*: RocketMQ's order configuration, such as
`broker-a:4;broker-b:4`. A topic without one has only its route, which shrinks with every broker that dies. A producer
then keeps the first list that it sees.

Invariant: within one producer, a key never moves to another queue unless the program allows it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lanemq.model.queue import MessageQueue

Queues = tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class KeyQueues:
    """The queues over which a producer spreads the keys of one topic."""

    queues: Queues
    from_layout: bool
    """Whether they come from the topic's layout; otherwise from the first route."""
    moved: str = ""
    """Why keys would move now, as text: a message with a key is refused. Empty as long as nothing moved."""


def parse_layout(topic: str, text: str) -> Queues | None:
    """The queues of a layout in the order of its text, as RocketMQ's clients read it; None if it cannot be read.

    A broker that is named twice is an error: its queues would count twice, and keys would gather there.
    """
    queues: list[MessageQueue] = []
    brokers: set[str] = set()
    for part in text.split(";"):
        broker, _, count = part.strip().rpartition(":")
        if not broker or broker in brokers or not (count.isascii() and count.isdigit()) or int(count) < 1:
            return None
        brokers.add(broker)
        queues.extend(MessageQueue(topic, broker, number) for number in range(int(count)))
    return tuple(queues)


def layout_text(queues_by_broker: Mapping[str, int]) -> str:
    """The layout of these brokers, sorted by name.

    That is the order in which RocketMQ's clients derive queues from a route, so that producers which do not read
    layouts choose the same queues while all brokers are up.
    """
    return ";".join(f"{broker}:{queues_by_broker[broker]}" for broker in sorted(queues_by_broker))


def key_queues(known: KeyQueues | None, layout: Queues | None, writable: Queues, *, may_move: bool) -> KeyQueues | None:
    """The queues to use for keys, given those used so far and what the name server says now.

    `writable` are the queues of brokers that are up. None if nothing is known yet: no broker is up.
    """
    if layout is not None:
        offered: KeyQueues | None = KeyQueues(layout, from_layout=True)
    else:
        offered = KeyQueues(writable, from_layout=False) if writable else None
    if known is None or offered is None:
        return offered or known
    if offered.queues == known.queues:
        return replace(offered, from_layout=known.from_layout or offered.from_layout)
    moved = _difference(known, offered)
    if not moved:
        return replace(known, moved="")
    return offered if may_move else replace(known, moved=moved)


def _difference(known: KeyQueues, offered: KeyQueues) -> str:
    """How the lists differ, as text; empty if only brokers are away, or the layout is."""
    if offered.from_layout:
        return f"its layout is {_text(offered.queues)} now"
    before, now = _counts(known.queues), _counts(offered.queues)
    if all(before.get(broker) == count for broker, count in now.items()):
        return ""
    if known.from_layout:
        return ""  # the layout decides, whatever the brokers have; this name server does not know it
    return f"its brokers have the queues {_text(offered.queues)} now"


def _counts(queues: Sequence[MessageQueue]) -> Counter[str]:
    return Counter(queue.broker for queue in queues)


def _text(queues: Sequence[MessageQueue]) -> str:
    """Brokers and their number of queues, in the order of the list."""
    return ";".join(f"{broker}:{count}" for broker, count in _counts(queues).items())
