"""Promise 4: one owner. It stops itself strictly before the broker could grant the queue to another."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.members import until
from tests.chaos.mutants import lease_end
from tests.chaos.proxy import ProxiedBroker
from tests.chaos.stage import TOPIC

from lanemq.client.app import App
from lanemq.client.message import Message
from lanemq.client.producer import Producer
from lanemq.core.queue_lease import LeaseTimes
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

TIMES = LeaseTimes(Millis(150), Millis(700), Millis(1_400))
MESSAGES = 3_000


class Member:
    """Notes when each of its turns began, by queue."""

    def __init__(self, address: str, name: str) -> None:
        self.began: list[tuple[int, float]] = []
        self.app = App(
            address, group="g", client_id=name, lease_times=TIMES, heartbeat_every_ms=300, rebalance_soon_ms=50
        )

        @self.app.ordered(TOPIC, lanes=2)
        def on_message(message: Message) -> None:
            self.began.append((message.queue.queue_id, time.monotonic()))
            time.sleep(0.002)

        self.app.start()

    def first(self, queue: int) -> float | None:
        return next((at for number, at in self.began if number == queue), None)

    def last(self, queue: int) -> float:
        return max(at for number, at in self.began if number == queue)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ProxiedBroker]:
    broker = ProxiedBroker(tmp_path / "data", member_expiry_ms=1_000)
    yield broker
    broker.close()


def cut_off_and_take_over(broker: ProxiedBroker) -> tuple[Member, Member, float]:
    """`a` has a large backlog in memory when its network goes silent; then `b` joins and gets everything."""
    with Producer(broker.address) as producer:
        for number in range(MESSAGES):
            producer.send_oneway(TOPIC, number, key=f"k{number % 20}")
        producer.flush()
    a = Member(broker.address, "a")
    until("a works on all queues", lambda: all(a.first(queue) for queue in range(4)))
    held = broker.hold()
    cut_at = time.monotonic()
    b = Member(broker.address, "b")
    until("b works on all queues", lambda: all(b.first(queue) for queue in range(4)))
    taken = len(a.began)
    until("both had time", lambda: len(b.began) > 200 or len(a.began) > taken + 200)
    for wire in held:
        wire.cut()
    for member in (a, b):
        member.app.stop(now=True)
    return a, b, cut_at


@pytest.mark.row("A43")
def test_a_cut_off_owner_stops_before_its_rival_starts(broker: ProxiedBroker) -> None:
    """ "The owner stops itself strictly before the broker could grant the queue to another.\""""
    a, b, cut_at = cut_off_and_take_over(broker)
    for queue in range(4):
        rival = b.first(queue)
        assert rival is not None
        stopped = max(at for number, at in a.began if number == queue and at < rival)
        assert stopped - cut_at < TIMES.client_lease / 1000
        assert not [at for number, at in a.began if number == queue and rival < at < rival + 0.2]


def test_an_owner_that_does_not_look_at_its_lease_runs_beside_its_rival(
    broker: ProxiedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: nothing else stops it, its backlog is in its own memory."""
    lease_end(monkeypatch.setattr)
    a, b, _ = cut_off_and_take_over(broker)
    assert any(a.last(queue) > (b.first(queue) or 0) for queue in range(4))


@pytest.mark.parametrize("times", [(700, 700, 1_400), (150, 1_400, 1_400), (800, 700, 1_400), (0, 700, 1_400)])
def test_lease_times_that_leave_no_margin_are_refused_at_the_start(times: tuple[int, int, int]) -> None:
    """ "Renewal interval < client lease < broker lease, checked at start.\""""
    with pytest.raises(InvalidOption):
        LeaseTimes(*map(Millis, times))
