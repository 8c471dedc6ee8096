"""Messages that a query of a group does not read because the group's offset is past them.

Another member has done them, or somebody put the group's offset forward: a broker stores both alike, so the query
leaves them out either way. The rule guarded here: it says so, once for each queue and place.
"""

import logging

from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.spark.offsets import Positions

log = logging.getLogger(__name__)


class PassedOver:
    """What one run of a query has left to its group."""

    def __init__(self, group: str | None) -> None:
        self._group = group
        self._told: Positions = {}
        """The group's offset as it was last told."""

    def later(self, queue: MessageQueue, at: QueueOffset, floor: QueueOffset) -> QueueOffset:
        """Where reading goes on: at the query's own place, or where the group stands if that is further."""
        if at >= floor:
            return at
        if self._told.get(queue) != floor:
            self._told[queue] = floor
            log.warning(
                "group %s: %s: the query stands at %d, the group at %d: the %d messages between are left to whoever "
                "stored that offset (another member, or a reset of the group), and are not read here",
                self._group, queue, at, floor, floor - at,
            )  # fmt: skip
        return floor
