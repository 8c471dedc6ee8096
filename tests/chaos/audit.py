"""Reads the running broker's log as a client, and compares it with the acknowledgements.

Each look reads only what is new. A message that was acknowledged must be there, at the place that was named; the
messages of a key must be there from the first on, one after the other.
"""

import json

from tests.broker.raw_client import RawClient
from tests.chaos.history_follower import HistoryFollower, Place
from tests.chaos.roles import TOPIC

from lanemq.wire.record import RecordView


class Audit:
    """One audit for a whole run; reads each message once."""

    def __init__(self, follower: HistoryFollower, queues: int) -> None:
        self._follower = follower
        self._next = dict.fromkeys(range(queues), 0)
        self._step: dict[str, int] = {}
        self._unacknowledged: dict[Place, str] = {}
        """Stored, and not acknowledged so far: in flight, or their producer is dead."""
        self.stored = 0

    def look(self, address: str) -> None:
        """Raises `AssertionError` for the first message that is missing, at another offset, or out of order."""
        acknowledged = dict(self._follower.read().news)
        with RawClient(address) as raw:
            for queue, first in self._next.items():
                for record in raw.read(TOPIC, queue, first):
                    self._read(queue, record)
        for place, name in acknowledged.items():
            there = self._unacknowledged.pop(place, None)
            assert there is not None, f"{name} was acknowledged at {place}, but nothing is there"
            assert there == name, f"{name} was acknowledged at {place}, but {there} is there"
            del self._follower.news[place]

    def _read(self, queue: int, record: RecordView) -> None:
        offset = record.queue_offset
        assert offset == self._next[queue], f"queue {queue} jumps from {self._next[queue]} to {offset}"
        self._next[queue] = offset + 1
        key, step = record.properties["__SHARDINGKEY"], json.loads(record.body)["step"]
        expected = self._step.get(key, -1) + 1
        assert step == expected, f"key {key} has step {step} at {(queue, offset)} instead of {expected}"
        self._step[key] = step
        self._unacknowledged[queue, offset] = record.properties["UNIQ_KEY"]
        self.stored += 1
