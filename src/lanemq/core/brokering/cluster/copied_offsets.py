"""Which offsets are copied to the brokers, and when somebody else has changed one there.

The brokers' own tools then show the lag of a coordinated group. A broker takes any commit, and RocketMQ's tools set
offsets there. So an offset that is none of the last copies was set by somebody else: it is not overwritten, until it is
the group's offset, or an operator resets the group in that queue. After a fail-over, and after a restart, a broker may
have an older copy. A broker that runs on goes back only if somebody has set it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lanemq.model.queue import MessageQueue

REMEMBERED = 16
"""Copies of one queue that are recognised. A replica that lags by more makes a false alarm, and nothing worse."""


class SetByOthers(NamedTuple):
    """An offset that somebody else has set at a broker."""

    queue: MessageQueue
    theirs: int
    ours: int


class CopiedOffsets:
    """The copies of one group."""

    def __init__(self, copies: Mapping[MessageQueue, Iterable[int]] | None = None) -> None:
        self._copies = {queue: list(values)[-REMEMBERED:] for queue, values in (copies or {}).items()}

    @property
    def copies(self) -> Mapping[MessageQueue, list[int]]:
        """The last copies of each queue, the newest last."""
        return self._copies

    def compare(
        self,
        ours: Mapping[MessageQueue, int],
        theirs: Mapping[MessageQueue, int],
        before: Mapping[MessageQueue, int] = {},
    ) -> tuple[dict[MessageQueue, int], list[SetByOthers]]:
        """What is to be copied, and what others have set. Note the copies (`copied`) before they are sent.

        `before` is what the same run of the broker had at the last look.
        """
        wanted: dict[MessageQueue, int] = {}
        others: list[SetByOthers] = []
        for queue, offset in ours.items():
            there, known = theirs.get(queue), self._copies.get(queue)
            if there == offset:
                continue
            if known and there in known and before.get(queue) in known[known.index(there) + 1 :]:
                del known[: known.index(there) + 1]  # from now on it is none of ours
            if there is None or known is None or there in known:
                wanted[queue] = offset
            else:
                others.append(SetByOthers(queue, there, offset))
        return wanted, others

    def copied(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            known = self._copies.setdefault(queue, [])
            known.append(offset)
            del known[:-REMEMBERED]

    def overwrite(self, topic: str, queue_id: int) -> None:
        """An operator has reset the group in a queue, at every broker: what others have set there counts no more."""
        for queue in [each for each in self._copies if (each.topic, each.queue_id) == (topic, queue_id)]:
            del self._copies[queue]
