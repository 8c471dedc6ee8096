"""The send logic without sockets: any schedule of loss and delay leaves each message stored once, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.encoding import split_batch

from lanemq.client.producer.batches import PendingMessage, RequestBuilder
from lanemq.client.producer.engine import SendEngine
from lanemq.client.producer.lane import SendRequest
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.replies import Actions
from lanemq.client.producer.waiters import BatchWaiter, Waiter
from lanemq.client.receipt import Receipt
from lanemq.core.brokering.dedup import Duplicate, Fresh, Gap, ProducerTable
from lanemq.model.errors import ConnectionLost, LaneError, LaneFrozen, RequestTimedOut
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.properties import find_stamp

QUEUE = MessageQueue("orders", "b", 0)


class HandClock:
    def __init__(self) -> None:
        self.millis = 0

    def now(self) -> Millis:
        return Millis(self.millis)

    def wall(self) -> Millis:
        return Millis(1_700_000_000_000 + self.millis)


@dataclass
class RecordingWaiter:
    """A waiter that writes down what it is told."""

    receipts: dict[int, Receipt] = field(default_factory=dict)
    errors: dict[int, LaneError] = field(default_factory=dict)

    def stored(self, index: int, receipt: Receipt) -> None:
        assert index not in self.receipts
        assert index not in self.errors
        self.receipts[index] = receipt

    def failed(self, index: int, error: LaneError) -> None:
        assert index not in self.receipts
        assert index not in self.errors
        self.errors[index] = error


class Rig:
    """An engine, a broker that judges stamps, and the wire between them in the test's hands."""

    def __init__(self, *, checks_stamps: bool = True, **options: int | float) -> None:
        self.clock = HandClock()
        self.results = RecordingWaiter()
        self.checks_stamps = checks_stamps
        self.engine = SendEngine(
            ProducerOptions(codec="bytes", **options),  # type: ignore[arg-type]
            RequestBuilder("g", "client", "p"),
            self.clock,
        )
        self.wire: list[SendRequest] = []
        self.log: list[int] = []
        self.producers = ProducerTable()
        self.sent = 0

    def offer(
        self, count: int = 1, *, sender_waits: bool = False, key: str | None = "k", waiter: Waiter | None = None
    ) -> None:
        messages, waiter = [], waiter or self.results
        for _ in range(count):
            body = str(self.sent).encode()
            messages.append(
                PendingMessage(body, "", "id", key, sender_waits=sender_waits, waiter=waiter, index=self.sent, size=100)
            )
            self.sent += 1
        lane = self.engine.offer(QUEUE, messages, checks_stamps=self.checks_stamps, lingers=not sender_waits)
        self.wire += self.engine.take_requests(lane)

    def connect(self) -> None:
        for broker, _ in self.engine.to_dial():
            self.wire += self.engine.connected(broker)

    def tick(self, millis: int) -> Actions:
        self.clock.millis += millis
        work = self.engine.tick()
        self._do(work)
        return work

    def broker_takes(self, request: SendRequest) -> Command:
        bodies, stamp = _messages(request.command)
        if not self.checks_stamps:
            self.log += bodies
            return _stored(len(self.log) - len(bodies))
        match self.producers.judge("orders", 0, stamp, len(bodies)):
            case Fresh(0, _):
                offset = QueueOffset(len(self.log))
                self.producers.record("orders", 0, stamp, len(bodies), offset, stored_at=Millis(1))
                self.log += bodies
                return _stored(offset)
            case Duplicate(offset):
                return _stored(offset or 0, laneDuplicate="true")
            case Gap(expected):
                return Command(ResponseCode.SEQUENCE_GAP, 0, 1, {"laneExpected": str(expected)})
            case other:
                raise AssertionError(other)

    def reply(self, request: SendRequest, reply: Command) -> None:
        self._do(self.engine.replied(request, reply, None))

    def lose(self) -> None:
        """The connection ends: everything unanswered is answered with that."""
        self.engine.disconnected("b")
        lost, self.wire = self.wire, []
        for request in lost:
            self._do(self.engine.replied(request, None, ConnectionLost("gone")))

    def serve(self) -> None:
        """From now on nothing goes wrong."""
        for _ in range(200):
            self.tick(6000 if not self.wire and self.engine.buffered_bytes else 1)
            self.connect()
            while self.wire:
                request = self.wire.pop(0)
                self.reply(request, self.broker_takes(request))
            if self.engine.is_idle:
                return

    def frozen(self) -> set[str | None]:
        return {each.key for each in self.engine.frozen()}

    def _do(self, work: Actions) -> None:
        self.wire += work.requests
        for outcome in work.outcomes:
            outcome.notify()


def _messages(command: Command) -> tuple[list[int], object]:
    if command.ext.get("m") == "true":
        items = split_batch(command.body)
        return [int(item.body) for item in items], find_stamp(items[0].properties_text)
    return [int(command.body)], find_stamp(command.ext["i"])


def _stored(offset: int, **ext: str) -> Command:
    return Command(0, 0, 1, {"queueOffset": str(offset), **ext})


STEPS = st.lists(
    st.sampled_from(["offer", "offer", "many", "tick", "take", "take", "take_only", "swallow", "busy", "lose"]),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 4), st.integers(1, 3))
def test_any_schedule_stores_each_message_once_and_in_order(steps: Sequence[str], window: int, batch: int) -> None:
    rig = Rig(window=window, max_batch_messages=batch, timeout=3600.0, request_timeout=3600.0)
    rig.offer()
    for step in steps:
        _step(rig, step)
    rig.lose()
    rig.serve()
    assert rig.log == list(range(rig.sent))
    assert rig.results.errors == {}
    assert [rig.results.receipts[n].offset for n in range(rig.sent)] == list(range(rig.sent))
    assert rig.engine.buffered_bytes == 0


def _step(rig: Rig, step: str) -> None:
    match step:
        case "offer":
            rig.offer()
        case "many":
            rig.offer(4)
        case "tick":
            rig.tick(70)
            rig.connect()
        case "take" if rig.wire:
            request = rig.wire.pop(0)
            rig.reply(request, rig.broker_takes(request))
        case "take_only" if rig.wire:  # stored, the answer comes too late
            rig.broker_takes(rig.wire[0])
            rig.lose()
        case "swallow" if rig.wire:  # a busy broker drops one and sees the next
            rig.reply(rig.wire.pop(0), Command(ResponseCode.SYSTEM_BUSY, 0, 1))
        case "busy" if rig.wire:
            rig.reply(rig.wire.pop(), Command(ResponseCode.SYSTEM_BUSY, 0, 1))
        case "lose":
            rig.lose()


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_broker_without_stamps_gets_one_batch_at_a_time(steps: Sequence[str]) -> None:
    rig = Rig(checks_stamps=False, window=4, max_batch_messages=2, timeout=3600.0)
    for step in steps:
        if step in ("offer", "many", "tick", "take", "busy"):
            _step(rig, step)
        assert len(rig.wire) <= 1
    rig.serve()
    assert rig.log == list(range(rig.sent))


def test_repetition_is_the_same_request() -> None:
    """Other bytes under the same stamp would be dropped as a repeat, and lost."""
    rig = Rig()
    rig.offer()
    rig.connect()
    first = rig.wire[0].command
    rig.clock.millis += 5000
    rig.lose()
    rig.tick(100)
    rig.connect()
    assert rig.wire[0].command is first


def test_partial_batch_waits_for_the_answer_and_gathers_company() -> None:
    rig = Rig(max_batch_messages=10)
    rig.offer()
    rig.connect()
    rig.offer(3)
    rig.offer(3)
    assert len(rig.wire) == 1
    rig.reply(rig.wire[0], rig.broker_takes(rig.wire[0]))
    assert [len(request.batch.messages) for request in rig.wire[1:]] == [6]


def test_full_batch_does_not_wait_for_the_answer() -> None:
    rig = Rig(max_batch_messages=10, window=3)
    rig.offer()
    rig.connect()
    rig.offer(25)
    assert [len(request.batch.messages) for request in rig.wire] == [1, 10, 10]


def test_unanswered_request_is_a_reason_to_hang_up_only_if_repeats_are_dropped() -> None:
    for checks_stamps, expected in ((True, ["b"]), (False, [])):
        rig = Rig(checks_stamps=checks_stamps, request_timeout=3.0)
        rig.offer()
        rig.connect()
        assert rig.tick(2999).hang_up == []
        assert rig.tick(1).hang_up == expected


def test_deadline_fails_the_oldest_and_freezes_what_is_behind() -> None:
    rig = Rig(timeout=10.0, max_batch_messages=1, window=1)
    rig.offer()
    rig.connect()
    rig.offer()
    rig.tick(9999)
    assert rig.results.errors == {}
    rig.tick(1)
    assert isinstance(rig.results.errors[0], RequestTimedOut)
    assert isinstance(rig.results.errors[1], LaneFrozen)
    with pytest.raises(LaneFrozen, match="then call resume"):
        rig.offer()
    assert rig.engine.resume("orders", "k")
    assert not rig.engine.resume("orders", "k")
    rig.offer()
    assert rig.wire[-1].batch.epoch == 2
    assert rig.wire[-1].batch.first_sequence == 0


@pytest.mark.parametrize(("sender_waits", "key"), [(True, "k"), (False, None)])
def test_lane_opens_itself_when_nobody_can_be_overtaken(sender_waits: bool, key: str | None) -> None:
    rig = Rig(timeout=1.0)
    rig.offer(sender_waits=sender_waits, key=key)
    rig.connect()
    rig.tick(1000)
    assert isinstance(rig.results.errors[0], RequestTimedOut)
    assert rig.engine.frozen() == []
    rig.offer(sender_waits=sender_waits, key=key)
    assert rig.wire[-1].batch.epoch == 2


class Call(BatchWaiter):
    """A call that sends many."""

    def _wake(self) -> None:
        pass


def test_lane_of_a_failed_call_opens_when_the_call_ends() -> None:
    rig, call, other = Rig(timeout=1.0), Call(), Call()
    rig.offer(waiter=call)
    rig.offer(waiter=other)
    rig.connect()
    rig.tick(1000)
    with pytest.raises(LaneFrozen):
        rig.offer(waiter=call)
    rig.engine.call_ended(call, interrupted=False)
    assert rig.frozen() == {"k"}
    rig.engine.call_ended(other, interrupted=False)
    assert rig.engine.frozen() == []


def test_failure_after_the_end_of_its_call_does_not_hold_the_lane() -> None:
    """A call that was cut short, by its own iterable for example: nobody would ever end it again."""
    rig, call = Rig(timeout=1.0), Call()
    rig.offer(waiter=call)
    rig.connect()
    rig.engine.call_ended(call, interrupted=False)
    rig.tick(1000)
    assert call.errors
    assert rig.engine.frozen() == []


def test_submit_turned_away_by_a_failed_call_keeps_the_lane_frozen() -> None:
    """What its caller submits next would pass the one that was turned away."""
    rig, call = Rig(timeout=1.0), Call()
    rig.offer(waiter=call)
    rig.connect()
    rig.tick(1000)
    with pytest.raises(LaneFrozen):
        rig.offer()
    rig.engine.call_ended(call, interrupted=False)
    assert rig.frozen() == {"k"}
    assert rig.engine.resume("orders", queue=QUEUE)
    assert rig.engine.frozen() == []


def test_late_answer_to_a_message_given_up_changes_nothing() -> None:
    rig = Rig(timeout=1.0)
    rig.offer(sender_waits=True)
    rig.connect()
    late = rig.wire.pop()
    rig.tick(1000)
    rig.offer(sender_waits=True)
    rig.reply(late, _stored(0))
    rig.reply(late, Command(ResponseCode.SYSTEM_BUSY, 0, 1))
    assert set(rig.results.errors) == {0}
    assert rig.results.receipts == {}


def test_late_refusal_of_an_earlier_attempt_does_not_hide_the_present_one() -> None:
    rig = Rig(window=2, max_batch_messages=1, request_timeout=3.0)
    rig.offer()
    rig.connect()
    rig.offer()
    first, second = rig.wire
    rig.wire.clear()
    rig.reply(first, Command(ResponseCode.SYSTEM_BUSY, 0, 1))
    rig.tick(100)
    assert len(rig.wire) == 2
    rig.reply(second, Command(ResponseCode.SEQUENCE_GAP, 0, 1, {"laneExpected": "0"}))
    assert len(rig.wire) == 2
    assert rig.tick(3000).hang_up == ["b"]


def test_lost_messages_are_reported_not_papered_over() -> None:
    """The broker expects an earlier sequence than the oldest unanswered one: acknowledged messages are gone."""
    rig = Rig()
    rig.offer()
    rig.connect()
    rig.reply(rig.wire[0], rig.broker_takes(rig.wire[0]))
    rig.wire.clear()
    rig.offer()
    gap = Command(ResponseCode.SEQUENCE_GAP, 0, 1, {"laneExpected": "7"}, remark="7 is missing")
    rig.reply(rig.wire[0], gap)
    assert "7 is missing" in str(rig.results.errors[1])


def test_dial_waits_longer_after_every_failure() -> None:
    rig = Rig()
    rig.offer()
    waits = []
    for _ in range(7):
        while not rig.engine.to_dial():
            rig.clock.millis += 1
        waits.append(rig.clock.millis)
        assert rig.engine.to_dial() == []
        rig.engine.dial_failed("b", ConnectionLost("nobody there"))
    pauses = [after - before for before, after in pairwise(waits)]
    assert pauses == [50, 100, 200, 500, 1000, 1000]


def test_a_keeper_is_never_sent_round_without_a_pause() -> None:
    """Whatever is overdue after a look waits for an answer: looking again at once would burn a core until it comes."""
    rig = Rig(timeout=1.0)
    rig.offer(sender_waits=True)
    rig.connect()
    assert rig.wire
    rig.clock.millis += 5_000
    assert rig.engine.next_wake() == rig.clock.now() + 1
