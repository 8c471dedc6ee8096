"""Who is asking: the standing of a pull or a commit towards the queue's lease."""

from typing import Protocol

from lanemq.broker.parts import Parts
from lanemq.core.brokering.lock_table import Verdict
from lanemq.core.brokering.membership import ConnectionId
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.server import Peer


class Claim(Protocol):
    """The two fields by which a LaneMQ client says who it is; a stock client sends neither."""

    @property
    def lane_client(self) -> str | None: ...

    @property
    def lane_epoch(self) -> int | None: ...


def standing(parts: Parts, peer: Peer, group: str, topic: str, queue_id: int, claim: Claim) -> Verdict:
    """The lock table's verdict on this request; a stock client is known by the heartbeat of its connection."""
    queue = MessageQueue(topic, parts.options.name, queue_id)
    owner = claim.lane_client or parts.members.client_of(ConnectionId(peer.number)) or ""
    epoch = None if claim.lane_epoch is None else Epoch(claim.lane_epoch)
    return parts.locks.verdict(group, queue, owner, epoch, now=parts.clock.now())
