"""Promise 4: one owner. It stops itself strictly before the broker could grant the queue to another.

When it is lost, the other members take its queues over: within 1.5 s if its connection closes, within 7 s if not. All
of it with default settings.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.chaos.losses import KINDS, SILENT_SECONDS, losses_in, why_no_namespaces
from tests.chaos.members import key_in, until
from tests.chaos.mutants import dead_connection, lease_end
from tests.chaos.proxy import ProxiedBroker
from tests.chaos.roles import FOUR_QUEUES
from tests.chaos.system import TOPIC, complaint, system_in

from lanemq.checker.verdict import Verdict
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.queue_lease import LANE_TIMES, LeaseTimes
from lanemq.model.errors import InvalidOption

TRIALS = 2
BEFORE_LEASES_END = LANE_TIMES.broker_lease - LANE_TIMES.renew_every
"""Seconds. The benchmark `lanes_take_over` measures the promised 1.5 s, on a machine that does nothing else."""
MESSAGES = 3_000
WORK_SECONDS = 0.02
"""So slow that a backlog of all messages outlasts the take-over, however busy the machine is."""


class Member:
    """A member that records when each of its turns began, by queue, and under which epoch."""

    def __init__(self, address: str, name: str) -> None:
        self.began: list[tuple[int, int, float]] = []
        self.app = App(address, group="g", client_id=name)

        @self.app.ordered(TOPIC, lanes=2)
        def on_message(message: Message) -> None:
            self.began.append((message.queue.queue_id, message.epoch, time.monotonic()))
            time.sleep(WORK_SECONDS)

        self.app.start()

    @property
    def queues(self) -> set[int]:
        """Those that it has worked on."""
        return {number for number, _, _ in self.began}

    def has_fetched_all(self) -> bool:
        cached = sum(each.lanes.cached.count for each in self.app.snapshot().queues.values())
        return len(self.began) + cached >= MESSAGES

    def first(self, queue: int) -> tuple[int, float]:
        """Under which epoch, and when."""
        return next((epoch, at) for number, epoch, at in self.began if number == queue)

    def turns_before(self, queue: int, epoch: int) -> list[float]:
        """Of epochs before this one. Once it is heard again, it may become the owner again."""
        return [at for number, its, at in self.began if number == queue and its < epoch]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ProxiedBroker]:
    broker = ProxiedBroker(tmp_path / "data")
    yield broker
    broker.close()


def cut_off_and_take_over(broker: ProxiedBroker) -> tuple[Member, Member, float]:
    """`a` has a large backlog in memory when its network goes silent; then `b` joins and gets its queues."""
    with Producer(broker.address, create=FOUR_QUEUES) as producer:
        for number in range(MESSAGES):
            producer.send_oneway(TOPIC, number, key=f"k{number % 20}")
        producer.flush()
    a = Member(broker.address, "a")
    until("a has all messages and works on all queues", lambda: a.has_fetched_all() and len(a.queues) == 4)
    held = broker.hold()
    cut_at = time.monotonic()
    b = Member(broker.address, "b")
    until("b works on its share at least", lambda: len(b.queues) >= 2)
    until("both had time to come to every key", lambda: len(b.began) > 300)
    for wire in held:
        wire.cut()
    for member in (a, b):
        member.app.stop(now=True)
    return a, b, cut_at


@pytest.mark.slow
@pytest.mark.row("A43")
def test_a_cut_off_owner_stops_before_the_next_owner_starts(broker: ProxiedBroker) -> None:
    """ "The owner stops itself strictly before the broker could grant the queue to another.\""""
    a, b, cut_at = cut_off_and_take_over(broker)
    for queue in b.queues:
        epoch, rival = b.first(queue)
        assert max(a.turns_before(queue, epoch)) < rival
        held = max(its for number, its, at in a.began if number == queue and at <= cut_at)
        stopped = max(a.turns_before(queue, held + 1))
        assert stopped - cut_at < LANE_TIMES.broker_lease, "the lease is over, and it was not renewed"


@pytest.mark.slow
def test_an_owner_that_does_not_check_its_lease_overlaps_the_next_owner(
    broker: ProxiedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: nothing else stops it, because its backlog is in memory."""
    lease_end(monkeypatch.setattr)
    a, b, _ = cut_off_and_take_over(broker)
    firsts = {queue: b.first(queue) for queue in b.queues}
    assert any(max(a.turns_before(queue, epoch)) > rival for queue, (epoch, rival) in firsts.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_member_is_replaced_and_joins_again(tmp_path: Path, kind: str) -> None:
    """ "After silence it is removed, and the others take over." A member that wakes up gets its share back."""
    if kind == "cut off" and (reason := why_no_namespaces()):
        pytest.skip(reason)
    with system_in(tmp_path) as system, losses_in(system, kind) as losses:
        producer = losses.start()
        waits = [wait for _ in range(TRIALS) for wait in losses.trial()]
        assert max(waits) < (BEFORE_LEASES_END if kind == "killed" else SILENT_SECONDS), waits
        system.finish(producer)
        system.until("everything is done", system.is_drained)
        system.finish(*losses.members)
        report = system.judge("rebalance", "faults")
    assert report.verdict is Verdict.PASS, complaint(report)


@pytest.mark.slow
def test_a_broker_that_ignores_silence_leaves_the_queues_of_a_frozen_member_alone(tmp_path: Path) -> None:
    """Negative control: the leases end, but the frozen member keeps its share of the allocation."""
    with system_in(tmp_path) as system, losses_in(system, "frozen") as losses:
        losses.start("member_silence")
        lost_at, lost = losses.lose()
        with pytest.raises(pytest.fail.Exception, match="waited 9 s until the other member works on all lost queues"):
            losses.waits(lost_at, lost, 9)
        assert system.seen("turn", losses.members[1].name, after=lost_at), (
            "the other member continues with its own queues"
        )


@pytest.mark.extended
def test_a_member_of_a_broker_that_takes_seconds_to_answer_gets_its_queues(broker: ProxiedBroker) -> None:
    with Producer(broker.address, create=FOUR_QUEUES) as producer:
        for number in range(4):
            producer.send(TOPIC, number, key=key_in(number))
    broker.delay = 1.2
    member = Member(broker.address, "a")
    until("it works on all queues", lambda: len(member.queues) == 4)
    member.app.stop(now=True)


@pytest.mark.slow
def test_an_overloaded_broker_also_removes_a_frozen_member(tmp_path: Path) -> None:
    """Its housekeeping is always late. One pause of its own is added to the silence, not all of them."""
    with system_in(tmp_path) as system, losses_in(system, "frozen") as losses:
        losses.start("late_ticks")
        assert max(losses.waits(*losses.lose())) < 2 * SILENT_SECONDS


@pytest.mark.extended
def test_a_broker_that_adds_all_its_pauses_never_removes_a_frozen_member(tmp_path: Path) -> None:
    """Negative control."""
    with system_in(tmp_path) as system, losses_in(system, "frozen") as losses:
        losses.start("late_ticks", "pauses_once")
        with pytest.raises(pytest.fail.Exception, match="until the other member works on all lost queues"):
            losses.waits(*losses.lose(), 2 * SILENT_SECONDS)


@pytest.mark.extended
def test_a_frozen_member_that_does_not_join_again_stays_outside(tmp_path: Path) -> None:
    """Negative control: it wakes up, and the other member keeps all queues until the next heartbeat."""
    with system_in(tmp_path) as system, losses_in(system, "frozen") as losses:
        losses.start(first_without=("joining_again",))
        losses.waits(*losses.lose())
        losses.bring_back()
        with pytest.raises(pytest.fail.Exception, match="waited 9 s until both members work on their shares"):
            losses.all_work(9)


def silent_connection(broker: ProxiedBroker) -> Member:
    """A member that works, and whose connections never answer again; new ones would."""
    with Producer(broker.address, create=FOUR_QUEUES) as producer:
        for number in range(4):
            producer.send(TOPIC, number, key=key_in(number))
    member = Member(broker.address, "a")
    until("it works on all queues", lambda: len(member.queues) == 4)
    broker.hold()
    with Producer(broker.address) as producer:
        producer.send(TOPIC, "later", key=key_in(0))
    return member


@pytest.mark.slow
def test_a_member_whose_connection_is_dead_dials_again(broker: ProxiedBroker) -> None:
    """TCP does not notice: the bytes are taken and never answered."""
    member = silent_connection(broker)
    until("it handles what was sent since", lambda: len(member.began) == 5)
    member.app.stop()


@pytest.mark.slow
def test_a_member_that_leaves_dead_connections_to_tcp_does_not_come_back(
    broker: ProxiedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: it handles nothing for much longer than a lease."""
    dead_connection(monkeypatch.setattr)
    member = silent_connection(broker)
    with pytest.raises(pytest.fail.Exception):
        until("it handles what was sent since", lambda: len(member.began) == 5, 2 * LANE_TIMES.broker_lease)
    member.app.stop(now=True)


@pytest.mark.parametrize("times", [(700, 700, 1_400), (150, 1_400, 1_400), (800, 700, 1_400), (0, 700, 1_400)])
def test_lease_times_that_leave_no_margin_are_refused_at_the_start(times: tuple[int, int, int]) -> None:
    """ "Renewal interval < client lease < broker lease, checked at start.\""""
    with pytest.raises(InvalidOption):
        LeaseTimes(*(each / 1000 for each in times))
