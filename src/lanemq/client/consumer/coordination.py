"""Who coordinates the group of a member: each broker its own queues, or one coordinator those of a whole cluster.

A queue has two addresses: where its messages are, which is always its broker, and who decides about its leases, offsets
and lanes. The latter has a name here: that of the broker, or `COORDINATOR`.
"""

import asyncio
from collections.abc import Iterable

from lanemq.client.coordination import Leader
from lanemq.client.topic_route import TopicRoute
from lanemq.model.errors import GroupConflict
from lanemq.model.names import pull_group
from lanemq.net.address import Address

COORDINATOR = "the coordinator"
"""The name of a coordinator where others have the name of a broker; no broker has a space in its name."""


class Coordination:
    """What a member knows of who coordinates its group. It begins with the brokers."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.address: Address | None = None
        """Of the coordinator that leads; None: the brokers coordinate."""
        self.term = 0
        """The highest term of a coordinator that this member has seen; it ignores lower ones."""
        self.highest_epoch = 0
        """The highest epoch that this member was granted: a coordinator that has lost its state learns it here."""
        self.known = False
        """Whether the name servers were asked."""
        self.doubted = asyncio.Event()
        """Set while the coordinator is away, or does not lead any more."""
        self.changed = False
        """Whether another coordinator leads, or the same one with another term, and nothing was done about it yet."""

    def found(self, leader: Leader | None) -> bool:
        """Takes the answer of the name servers, or of a coordinator that does not lead; whether that is news.

        A member stays with what it found first. The coordinator may be at another address later. If its entry vanishes,
        name servers have lost it, or the group was moved back, which the coordinator itself says.
        """
        if self.known and self.address is None and leader is not None:
            raise GroupConflict(
                f"group {self._group} was moved to the coordinator at {leader.address} while this member consumed from "
                f"the brokers, which give it no more messages: start it again"
            )
        self.known = True
        if leader is None or leader.term < self.term or (leader.address, leader.term) == (self.address, self.term):
            return False
        if self.address is not None:
            self.changed = True
            self.doubted.set()
        self.address, self.term = leader.address, leader.term
        return True

    def doubt(self) -> None:
        """The coordinator does not answer, or not as the leader: another one may lead."""
        if self.address is not None:
            self.doubted.set()

    def answered(self, term: int | None) -> bool:
        """Takes the term of an answer; false if a coordinator sent it that was replaced."""
        if term is not None and term < self.term:
            self.doubt()
            return False
        self.term = max(self.term, term or 0)
        return True

    def of(self, broker: str) -> str:
        """Who coordinates the queues of a broker."""
        return broker if self.address is None else COORDINATOR

    def all_of(self, brokers: Iterable[str]) -> list[str]:
        """Who coordinates the queues of these brokers."""
        return sorted({self.of(broker) for broker in brokers})

    def is_lanemq(self, route: TopicRoute | None, name: str) -> bool:
        """Whether the broker or coordinator of this name grants epochs, and keeps finished ranges and lanes."""
        return name == COORDINATOR or (route is not None and route.is_lanemq(name))

    @property
    def pull_group(self) -> str:
        """The group that pulls name: the own name of a coordinated group is disabled at the brokers."""
        return self._group if self.address is None else pull_group(self._group)
