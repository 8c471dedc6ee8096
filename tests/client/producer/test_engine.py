"""The engine without sockets: after any schedule of losses and delays each message is stored once, in order."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.producer.engine_sim import QUEUE, Call, RecordingWaiter, route_of
from tests.client.virtual_time import ManualClock
from tests.wire.encoding import split_batch

from lanemq.client.producer.batches import PendingMessage, RequestBuilder
from lanemq.client.producer.engine import SENDING, Actions, SendEngine, SendRequest
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.outcomes import notify_all
from lanemq.client.producer.waiters import Waiter
from lanemq.core.brokering.dedup import Duplicate, Fresh, Gap, ProducerTable
from lanemq.history import NO_HISTORY, History
from lanemq.model.errors import ConnectionLost, LaneFrozen, RequestTimedOut
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.properties import find_stamp


class Rig:
    """An engine and a broker that checks stamps. The test moves every request and reply by hand."""

    def __init__(
        self,
        *,
        checks_stamps: bool = True,
        delivery_timeout: float = 120.0,
        history: History = NO_HISTORY,
        **sending: int,
    ) -> None:
        self.clock = ManualClock()
        self.results = RecordingWaiter()
        self.checks_stamps = checks_stamps
        self.engine = SendEngine(
            ProducerOptions(codec="bytes", delivery_timeout=delivery_timeout, history=history),
            RequestBuilder("g", "client", "p"),
            self.clock,
            replace(SENDING, **sending),
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
        sender = self.engine.sender_for(QUEUE, route_of(QUEUE, checks_stamps=self.checks_stamps))
        self.engine.check({QUEUE: messages})
        actions = self.engine.accept({sender: messages})
        self._do(actions)

    def connect(self) -> None:
        for broker, _ in self.engine.to_dial():
            self.wire += self.engine.connected(broker)

    def tick(self, millis: int) -> Actions:
        self.clock.at += millis
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
        """The connection is lost, and with it every reply."""
        self.engine.disconnected("b")
        lost, self.wire = self.wire, []
        for request in lost:
            self._do(self.engine.replied(request, None, ConnectionLost("gone")))

    def serve(self) -> None:
        """Serves everything without faults."""
        for _ in range(200):
            self.tick(6000 if not self.wire and self.engine.unsettled.bytes else 1)
            self.connect()
            while self.wire:
                request = self.wire.pop(0)
                self.reply(request, self.broker_takes(request))
            if self.engine.mark().settled:
                return

    def frozen(self) -> set[str | None]:
        return {each.key for each in self.engine.frozen()}

    def _do(self, work: Actions) -> None:
        self.wire += work.requests
        for outcome in work.outcomes:
            notify_all([outcome])


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
    rig = Rig(window=window, max_count=batch, delivery_timeout=3600.0, answer_timeout=3_600_000)
    rig.offer()
    for step in steps:
        _step(rig, step)
    rig.lose()
    rig.serve()
    assert rig.log == list(range(rig.sent))
    assert rig.results.errors == {}
    assert [rig.results.receipts[n].offset for n in range(rig.sent)] == list(range(rig.sent))
    assert rig.engine.unsettled.bytes == 0


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
    rig = Rig(checks_stamps=False, window=4, max_count=2, delivery_timeout=3600.0)
    for step in steps:
        if step in ("offer", "many", "tick", "take", "busy"):
            _step(rig, step)
        assert len(rig.wire) <= 1
    rig.serve()
    assert rig.log == list(range(rig.sent))


def test_a_repetition_is_the_same_request() -> None:
    """The broker would drop other bytes with the same stamp as a repeat."""
    rig = Rig()
    rig.offer()
    rig.connect()
    first = rig.wire[0].command
    rig.clock.at += 5000
    rig.lose()
    rig.tick(100)
    rig.connect()
    assert rig.wire[0].command is first


def test_a_partial_batch_grows_until_the_reply_arrives() -> None:
    rig = Rig(max_count=10)
    rig.offer()
    rig.connect()
    rig.offer(3)
    rig.offer(3)
    assert len(rig.wire) == 1
    rig.reply(rig.wire[0], rig.broker_takes(rig.wire[0]))
    assert [len(request.batch.messages) for request in rig.wire[1:]] == [6]


def test_a_full_batch_does_not_wait_for_the_reply() -> None:
    rig = Rig(max_count=10, window=3)
    rig.offer()
    rig.connect()
    rig.offer(25)
    assert [len(request.batch.messages) for request in rig.wire] == [1, 10, 10]


def test_an_unanswered_request_replaces_the_connection_only_if_the_broker_drops_repeats() -> None:
    for checks_stamps, expected in ((True, ("b",)), (False, ())):
        rig = Rig(checks_stamps=checks_stamps, answer_timeout=3_000)
        rig.offer()
        rig.connect()
        assert rig.tick(2999).hang_up == ()
        assert rig.tick(1).hang_up == expected


def test_a_passed_deadline_fails_the_oldest_message_and_freezes_its_key() -> None:
    rig = Rig(delivery_timeout=10.0, max_count=1, window=1)
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
def test_nothing_stays_frozen_if_the_sender_waits_or_the_message_has_no_key(
    sender_waits: bool, key: str | None
) -> None:
    rig = Rig(delivery_timeout=1.0)
    rig.offer(sender_waits=sender_waits, key=key)
    rig.connect()
    rig.tick(1000)
    assert isinstance(rig.results.errors[0], RequestTimedOut)
    assert rig.engine.frozen() == []
    rig.offer(sender_waits=sender_waits, key=key)
    assert rig.wire[-1].batch.epoch == 2


def test_a_key_resumes_when_all_failed_calls_have_ended() -> None:
    rig, call, other = Rig(delivery_timeout=1.0), Call(), Call()
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


def test_a_failure_after_its_call_has_ended_freezes_nothing() -> None:
    """The call will not end a second time, so nothing would ever resume the key."""
    rig, call = Rig(delivery_timeout=1.0), Call()
    rig.offer(waiter=call)
    rig.connect()
    rig.engine.call_ended(call, interrupted=False)
    rig.tick(1000)
    assert call.errors
    assert rig.engine.frozen() == []


def test_a_refused_submit_keeps_the_key_frozen_after_the_failed_call_ends() -> None:
    """The next submit of that caller would overtake the refused one."""
    rig, call = Rig(delivery_timeout=1.0), Call()
    rig.offer(waiter=call)
    rig.connect()
    rig.tick(1000)
    with pytest.raises(LaneFrozen):
        rig.offer()
    rig.engine.call_ended(call, interrupted=False)
    assert rig.frozen() == {"k"}
    assert rig.engine.resume("orders", queue=QUEUE)
    assert rig.engine.frozen() == []


def test_a_late_reply_to_a_message_given_up_changes_nothing() -> None:
    rig = Rig(delivery_timeout=1.0)
    rig.offer(sender_waits=True)
    rig.connect()
    late = rig.wire.pop()
    rig.tick(1000)
    rig.offer(sender_waits=True)
    rig.reply(late, _stored(0))
    rig.reply(late, Command(ResponseCode.SYSTEM_BUSY, 0, 1))
    assert set(rig.results.errors) == {0}
    assert rig.results.receipts == {}


def test_a_late_refusal_of_an_earlier_attempt_does_not_settle_the_current_one() -> None:
    rig = Rig(window=2, max_count=1, answer_timeout=3_000)
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
    assert rig.tick(3000).hang_up == ("b",)


def test_messages_that_the_broker_lost_are_reported() -> None:
    """The broker expects an earlier sequence than the oldest unanswered one: it has lost acknowledged messages."""
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
            rig.clock.at += 1
        waits.append(rig.clock.at)
        assert rig.engine.to_dial() == []
        rig.engine.dial_failed("b", ConnectionLost("refused"))
    pauses = [after - before for before, after in pairwise(waits)]
    assert pauses == [50, 100, 200, 500, 1000, 1000]


def test_the_next_wake_is_always_later_than_now() -> None:
    """What is still overdue after a tick waits for a reply: ticking again at once would use a whole core."""
    rig = Rig(delivery_timeout=1.0)
    rig.offer(sender_waits=True)
    rig.connect()
    assert rig.wire
    rig.clock.at += 5_000
    assert rig.engine.next_wake() == rig.clock.now() + 1
