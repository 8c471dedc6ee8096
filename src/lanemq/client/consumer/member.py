"""What others may know of a running consumer and ask of it; `consumer_engine` is one."""

from collections.abc import Coroutine
from typing import Any, Protocol

from lanemq.client.consumer.assigned_queue import Holding, Holdings
from lanemq.client.consumer.heartbeat import Heartbeat
from lanemq.client.consumer.metrics import ConsumerCounts
from lanemq.client.consumer.offsets import OffsetKeeper
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.subscription import Station
from lanemq.model.units import QueueOffset


class Member(Protocol):
    """One member of a group at work."""

    options: ConsumerOptions
    client_id: str
    holdings: Holdings
    stations: dict[str, Station]
    counts: ConsumerCounts
    heartbeat: Heartbeat
    offsets: OffsetKeeper

    def rebalance(self) -> None:
        """Look now who else there is."""
        ...

    def move(self, holding: Holding, offset: QueueOffset) -> None:
        """Go on at another offset of a held queue."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the loops; it ends with them."""
        ...
