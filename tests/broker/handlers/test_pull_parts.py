"""Answers to held pulls in parts: messages that arrive one by one need no request each."""

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, records
from tests.broker.running import ManualClock, RunningBroker

from lanemq.broker.handlers.pull import PART_AFTER_MS
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command

HOLD_MS = 3_000


@pytest.fixture
def clocked(start: Start) -> RunningBroker:
    running = start(clock=ManualClock())
    running.connect().create("T", 4)
    return running


class Owner:
    """The owner of queue 0, with a pull that allows an answer in parts."""

    def __init__(self, broker: RunningBroker, **more: object) -> None:
        self._broker = broker
        self.raw, self.producer = broker.connect(), broker.connect()
        (lease,) = self.raw.lock("c", laneLeaseMillis="60000").lane_leases
        fields = {"laneClient": "c", "laneEpoch": str(lease.epoch), "laneParts": "true", **more}
        self.held = self.raw.post_pull("T", 0, hold=HOLD_MS, **fields)
        self.raw.bounds("T")

    def next_part(self, body: bytes, after: int = PART_AFTER_MS) -> Command:
        """The part of the answer that one message brings."""
        self._broker.advance(after)
        assert self.producer.send("T", body).code == ResponseCode.SUCCESS
        return self.raw.answer(self.held)


def shape(reply: Command) -> tuple[int, list[bytes], int, bool]:
    found = bodies(records(reply)) if reply.code == ResponseCode.SUCCESS else []
    return reply.code, found, int(reply.ext["nextBeginOffset"]), "laneMore" in reply.ext


def test_each_message_that_arrives_alone_is_a_part_and_the_deadline_ends_the_answer(clocked: RunningBroker) -> None:
    owner = Owner(clocked)
    assert [shape(owner.next_part(body)) for body in (b"a", b"b", b"c")] == [
        (ResponseCode.SUCCESS, [b"a"], 1, True),
        (ResponseCode.SUCCESS, [b"b"], 2, True),
        (ResponseCode.SUCCESS, [b"c"], 3, True),
    ]
    clocked.advance(HOLD_MS - 3 * PART_AFTER_MS - 1)
    owner.raw.bounds("T")
    assert owner.held not in owner.raw._answers, "parts do not move the deadline, neither back nor forth"
    clocked.advance(1)
    assert shape(owner.raw.answer(owner.held)) == (ResponseCode.PULL_NOT_FOUND, [], 3, False)
    assert clocked.broker.running.pull._held == {}


def test_a_message_that_follows_at_once_ends_the_answer(clocked: RunningBroker) -> None:
    """While a queue is busy, messages share the answer to the next pull."""
    owner = Owner(clocked)
    assert shape(owner.next_part(b"a"))[3]
    assert shape(owner.next_part(b"b", after=PART_AFTER_MS - 1)) == (ResponseCode.SUCCESS, [b"b"], 2, False)


@pytest.mark.parametrize("limit", [{"most": 2}, {"laneMaxBytes": "400"}])
def test_all_parts_together_are_no_more_than_the_pull_asked_for(
    clocked: RunningBroker, limit: dict[str, object]
) -> None:
    owner = Owner(clocked, **limit)
    body = bytes(200)
    assert [shape(owner.next_part(body))[3] for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("asks", "leased"), [("false", True), ("true", False)])
def test_a_client_that_does_not_ask_or_has_no_lease_gets_one_answer(
    clocked: RunningBroker, asks: str, leased: bool
) -> None:
    raw, producer = clocked.connect(), clocked.connect()
    fields = {"laneClient": "c", "laneParts": asks}
    if leased:
        (lease,) = raw.lock("c", laneLeaseMillis="60000").lane_leases
        fields["laneEpoch"] = str(lease.epoch)
    held = raw.post_pull("T", 0, hold=HOLD_MS, **fields)
    raw.bounds("T")
    clocked.advance(PART_AFTER_MS)
    producer.send("T", b"a")
    assert shape(raw.answer(held)) == (ResponseCode.SUCCESS, [b"a"], 1, False)


def test_a_part_is_refused_once_the_queue_has_another_owner(clocked: RunningBroker) -> None:
    owner = Owner(clocked)
    assert shape(owner.next_part(b"a"))[3]
    owner.raw.unlock("c")
    other: RawClient = clocked.connect()
    assert other.lock("d", laneLeaseMillis="60000").lane_leases
    refused = owner.next_part(b"b")
    assert (refused.code, refused.body) == (ResponseCode.LEASE_REFUSED, b"")
    assert clocked.broker.running.pull._held == {}


def test_parts_end_with_their_connection_and_with_the_broker(clocked: RunningBroker) -> None:
    owner, other = Owner(clocked), clocked.connect()
    assert shape(owner.next_part(b"a"))[3]
    owner.raw.close()
    while clocked.call(lambda: len(clocked.broker.running.server.peers)) > 3:
        pass
    polls, pull = clocked.broker.running.context.polls, clocked.broker.running.pull
    assert clocked.call(lambda: (len(polls), pull._held, pull._by_peer)) == (0, {}, {})
    assert other.send("T").code == 0
