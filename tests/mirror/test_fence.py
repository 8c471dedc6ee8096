"""Nothing may be on its way to the target when it is read."""

from dataclasses import dataclass, field

import pytest

from lanemq.mirror.fence import (
    ALONE_MS,
    IN_HAND_SECONDS,
    AnotherMirror,
    wait_for_earlier_sends,
    wait_until_alone,
    wait_until_confirmed,
    wait_until_readable,
)
from lanemq.model.errors import RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

QUEUE = MessageQueue("orders", "b", 0)


@dataclass
class FakeBroker:
    """A broker on virtual time, which passes while the fence sleeps."""

    is_lanemq: bool = False
    broker: str = "b"
    others_until: float = 0
    queue_until: float = 0
    """Until when an old send waits in the send queue."""
    busy: bool = False
    """New sends of other producers always wait in the queue."""
    readable_at: float = 0
    confirmed_at: float = 0
    """Until when the replicas confirm nothing, and readers see nothing new."""
    marks: int = 0
    time: float = 0
    open: int = 0
    slept: list[float] = field(default_factory=list)

    def now(self) -> Millis:
        return Millis(round(self.time * 1000))

    def wall(self) -> Millis:
        return self.now()

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.slept.append(seconds)

    def connect(self) -> "FakeBroker":
        self.open += 1
        return self

    def close(self) -> None:
        self.open -= 1

    def others(self) -> list[str]:
        return ["old at 1.2.3.4"] if self.time < self.others_until else []

    def runtime(self) -> dict[str, str]:
        old = self.time < self.queue_until
        age = round(self.time * 1000) + 5 if old else 3
        behind = 100 if self.time < self.readable_at else 0
        size = int(old or self.busy)
        return {
            "sendThreadPoolQueueSize": str(size),
            "sendThreadPoolQueueHeadWaitTimeMills": str(age if size else 0),
            "dispatchBehindBytes": str(behind),
        }

    def mark(self) -> int | None:
        self.marks += 1
        return self.marks - 1 if self.time >= self.confirmed_at else None

    def marked_end(self) -> int:
        return self.marks if self.time >= self.readable_at else 0

    def ends(self, queue: MessageQueue) -> tuple[int, int]:
        return (7 if self.time < self.readable_at + 1 else 9), 9


class SilentBroker(FakeBroker):
    """RocketMQ 5.3.3 in controller mode: nothing shows that messages wait for the replicas."""

    def ends(self, queue: MessageQueue) -> tuple[int, int]:
        end = 7 if self.time < self.confirmed_at else 9
        return end, end


def test_a_session_waits_until_the_connection_of_a_dead_mirror_is_gone() -> None:
    broker = FakeBroker(others_until=100)
    assert wait_until_alone(broker.connect, broker, broker.sleep) is broker
    assert broker.time >= 100
    assert broker.open == 1


def test_a_mirror_that_stays_is_an_error() -> None:
    broker = FakeBroker(others_until=1e9)
    with pytest.raises(AnotherMirror, match=r"another mirror of this name writes to b: old at 1\.2\.3\.4"):
        wait_until_alone(broker.connect, broker, broker.sleep)
    assert broker.time * 1000 >= ALONE_MS
    assert broker.open == 0


def test_a_lane_broker_is_waited_for_only_shortly_because_it_knows_repeats() -> None:
    broker = FakeBroker(is_lanemq=True, others_until=1e9)
    wait_until_alone(broker.connect, broker, broker.sleep)
    assert broker.time < 5


@pytest.mark.parametrize("busy", [False, True])
def test_sends_that_wait_in_the_queue_are_waited_for_and_newer_ones_are_not(busy: bool) -> None:
    broker = FakeBroker(queue_until=12, busy=busy)
    wait_for_earlier_sends(broker, broker, broker.sleep)
    assert 12 + IN_HAND_SECONDS <= broker.time < 15


def test_a_marker_must_be_confirmed_and_readable_before_the_target_is_read() -> None:
    """In controller mode a broker reports nothing about messages that its replicas have not confirmed."""
    broker = SilentBroker(confirmed_at=5)
    assert wait_until_readable(broker, [QUEUE], broker, broker.sleep) == {QUEUE: 7}, "the control: its word is wrong"
    wait_until_confirmed(broker, broker, broker.sleep)
    assert wait_until_readable(broker, [QUEUE], broker, broker.sleep) == {QUEUE: 9}
    broker = FakeBroker(confirmed_at=5, readable_at=8)
    wait_until_confirmed(broker, broker, broker.sleep)
    assert broker.time >= 8
    with pytest.raises(RequestTimedOut, match="whether its replicas are up"):
        wait_until_confirmed(FakeBroker(confirmed_at=1e9), broker, broker.sleep)


def test_a_lane_broker_needs_no_marker() -> None:
    broker = FakeBroker(is_lanemq=True, confirmed_at=1e9)
    wait_until_confirmed(broker, broker, broker.sleep)
    assert broker.marks == 0


def test_a_queue_ends_where_everything_stored_is_readable() -> None:
    broker = FakeBroker(readable_at=3)
    assert wait_until_readable(broker, [QUEUE], broker, broker.sleep) == {QUEUE: 9}
    assert broker.time >= 4
