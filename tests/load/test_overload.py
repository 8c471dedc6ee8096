"""An overloaded broker answers "busy", uses limited memory, and serves clients that do not send."""

import json
import threading
import time
from collections import Counter

import pytest
from tests.broker.raw_client import RawClient, bodies
from tests.chaos.system import SystemUnderTest
from tests.load.gauge import MIB, read

from lanemq.core.consuming.queue_lease import LANE_TIMES
from lanemq.wire.codes import ResponseCode

SENDERS = 4
EACH = 120
BODY = bytes(256 * 1024)
WINDOW = 8
GROWTH_BYTES = MIB + SENDERS * WINDOW * len(BODY) + 48 * MIB
"""What may wait for the disk, what may be under way in sockets, and room for the allocator."""


class Sender(threading.Thread):
    """Sends as fast as it is answered, a few requests ahead, and never waits after a "busy"."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(daemon=True)
        self.codes: Counter[int] = Counter()
        self.offsets: list[int] = []
        self._number = number
        self._talk = RawClient(address)

    def run(self) -> None:
        waiting: list[int] = []
        for _ in range(EACH):
            waiting.append(self._talk.post_send("T", BODY, queue=self._number))
            if len(waiting) > WINDOW:
                self._hear(waiting.pop(0))
        for opaque in waiting:
            self._hear(opaque)
        self._talk.close()

    def _hear(self, opaque: int) -> None:
        reply = self._talk.answer(opaque)
        self.codes[reply.code] += 1
        if reply.code == 0:
            self.offsets.append(int(reply.ext["queueOffset"]))


@pytest.mark.slow
def test_at_five_times_its_capacity_the_broker_answers_busy_within_its_memory(system: SystemUnderTest) -> None:
    """A disk that takes half a second for every flush is easily overrun. Leases must be renewed all the same."""
    broker = system.broker(["stalling_disk", "little_memory"], default_queues=SENDERS)
    with RawClient(system.address) as raw:
        raw.create("T", SENDERS)
        raw.lane_lock("owner")
        before = read(broker.process.pid).memory
        senders = [Sender(system.address, number) for number in range(SENDERS)]
        for sender in senders:
            sender.start()
        memory, slowest = before, 0.0
        while any(sender.is_alive() for sender in senders):
            asked = time.monotonic()
            assert raw.lane_lock("owner").lock_ok_mq_set, "a renewal was refused"
            slowest = max(slowest, time.monotonic() - asked)
            memory = max(memory, read(broker.process.pid).memory)
        codes = sum((sender.codes for sender in senders), Counter[int]())
        acknowledged = {sender._number: sorted(sender.offsets) for sender in senders}
        assert {number: list(range(len(each))) for number, each in acknowledged.items()} == acknowledged
        stored = [len(bodies(raw.read("T", number))) for number in range(SENDERS)]
    print(json.dumps({"answers": codes, "MiB grown": round((memory - before) / MIB, 1), "slowest renewal, s": slowest}))
    assert stored == [len(each) for each in acknowledged.values()], (
        "busy means not stored, and stored means acknowledged"
    )
    assert codes.total() == SENDERS * EACH, "every request was answered"
    assert set(codes) == {0, ResponseCode.SYSTEM_BUSY}
    assert codes[ResponseCode.SYSTEM_BUSY] >= 4 * codes[0], "the load was less than five times the capacity"
    assert memory - before < GROWTH_BYTES
    assert slowest < LANE_TIMES.client_lease, "a member would have lost its queues"
