"""Sends that arrive together are answered exactly like sends that arrive one by one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, send_ext
from tests.broker.running import Gate, ManualClock, RunningBroker
from tests.faulty_disk import FaultyDisk

from lanemq.broker.handlers import send as send_handler
from lanemq.broker.storage import group_commit
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.sends import MAX_TOGETHER

Sends = list[dict[str, Any]]


def post_together(raw: RawClient, topic: str, sends: Sends) -> list[int]:
    """Send all requests in one write, so that the broker reads them at once."""
    opaques, frames = [], []
    for send in sends:
        more = dict(send)
        body, flag = more.pop("body", b"hello"), more.pop("flag", 0)
        opaque, frame = raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext(more.pop("topic", topic), **more), body, flag)
        opaques.append(opaque)
        frames.append(frame)
    raw.socket.sendall(b"".join(frames))
    return opaques


def content(reply: Command) -> tuple[int, str | None, dict[str, str]]:
    """An answer without the message's log position."""
    return reply.code, reply.remark, {name: value for name, value in reply.ext.items() if name != "msgId"}


def stored(raw: RawClient, topic: str) -> list[list[tuple[object, ...]]]:
    records = [raw.read(topic, queue) for queue in range(2)]
    return [
        [(each.queue_offset, each.body, each.properties_text, each.sys_flag) for each in queue] for queue in records
    ]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages in each append."""
    sizes: list[int] = []
    append = GroupCommit.append

    def counting(self: GroupCommit, topic: str, queue_id: int, items: Any, *more: Any) -> Any:
        sizes.append(len(items))
        return append(self, topic, queue_id, items, *more)

    monkeypatch.setattr(GroupCommit, "append", counting)
    return sizes


def test_a_burst_is_stored_in_order_and_answered_one_by_one(raw: RawClient, counted: list[int]) -> None:
    sends: Sends = [{"body": b"%d" % n, "stamp": f"p.0.{n}"} for n in range(200)]
    replies = [raw.answer(opaque) for opaque in post_together(raw, "T", sends)]
    assert [(reply.code, reply.ext["queueOffset"]) for reply in replies] == [(0, str(n)) for n in range(200)]
    records = raw.read("T")
    assert bodies(records) == [b"%d" % n for n in range(200)]
    assert [int(reply.ext["msgId"][16:], 16) for reply in replies] == [record.position for record in records]
    assert max(counted) > 1, "nothing was stored together: this test has proven nothing"


def test_more_sends_than_one_burst_are_all_stored(raw: RawClient) -> None:
    count = MAX_TOGETHER * 2 + 5
    opaques = post_together(raw, "T", [{"body": b"%d" % n} for n in range(count)])
    assert {raw.answer(opaque).code for opaque in opaques} == {0}
    assert bodies(raw.read("T")) == [b"%d" % n for n in range(count)]


def test_a_repeated_burst_stores_nothing(raw: RawClient) -> None:
    sends: Sends = [{"body": b"%d" % n, "stamp": f"p.0.{n}"} for n in range(20)]
    first = [raw.answer(opaque) for opaque in post_together(raw, "T", sends)]
    again = [raw.answer(opaque) for opaque in post_together(raw, "T", sends)]
    assert [reply.ext["queueOffset"] for reply in again] == [reply.ext["queueOffset"] for reply in first]
    assert {reply.ext.get("laneDuplicate") for reply in again} == {"true"}
    assert raw.bounds("T") == (0, 20)


def test_a_gap_inside_a_burst_refuses_everything_after_it(raw: RawClient) -> None:
    sends: Sends = [{"stamp": f"p.0.{n}"} for n in (0, 1, 2, 4, 5, 6)]
    codes = [raw.answer(opaque).code for opaque in post_together(raw, "T", sends)]
    assert codes == [0, 0, 0, *[ResponseCode.SEQUENCE_GAP] * 3]
    assert raw.bounds("T") == (0, 3)


ODD: Sends = [
    {"properties": {"TAGS": "a"}},
    {"properties": {"k": "ключ"}},
    {"properties": {"DELAY": "1"}},
    {"properties": {"TIMER_DELAY_MS": "5"}},
    {"properties": {"k": "v" * 99}},
    {"body": b"x" * 65},
    {"sys_flag": 4},
    {"sys_flag": 0x30},
    {"flag": 2},
    {"topic": "SELF_TEST_TOPIC"},
    {"topic": "%RETRY%g"},
    {"topic": "bad name"},
    {"times": 1},
    {"queue": 2},
    {"queue": -2},
]
"""Sends that are refused, stored elsewhere, not answered, or treated individually; with the limits of `limited`."""

PLAIN = st.fixed_dictionaries(
    {"queue": st.sampled_from([0, 0, 0, 1]), "body": st.sampled_from([b"", b"body"])},
    optional={"stamp": st.sampled_from([f"{producer}.0.{n}" for producer in "pq" for n in range(4)])},
)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_burst_of_unusual_sends_is_treated_as_single_ones(limited: RunningBroker, odd: dict[str, Any]) -> None:
    compare(limited, [{}, {}, odd, odd, odd, {}, {}], 0)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PLAIN | st.sampled_from(ODD), max_size=12), st.integers(1, 2**40))
def test_a_burst_is_answered_and_stored_like_single_sends(limited: RunningBroker, sends: Sends, number: int) -> None:
    compare(limited, sends, number)


def compare(running: RunningBroker, sends: Sends, number: int) -> None:
    """The same sends to two topics: all at once, and each after the answer to the one before."""
    with running.connect() as raw:
        one, other = f"together-{number}", f"singly-{number}"
        for topic in (one, other):
            raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
            raw.create(topic, queues=2)
        together = post_together(raw, one, sends)
        singly = []
        for send in sends:
            (opaque,) = post_together(raw, other, [send])
            singly.append(None if send.get("flag") else content(raw.answer(opaque)))
        replies = [
            None if send.get("flag") else content(raw.answer(opaque))
            for opaque, send in zip(together, sends, strict=True)
        ]
        assert [_plain(reply, one) for reply in replies] == [_plain(reply, other) for reply in singly]
        for topic in (one, other):  # after everything, also what is not answered
            assert raw.send(topic).code == 0
        if not any(send.get("queue", 0) < 0 for send in sends):  # assigned at random
            assert stored(raw, one) == stored(raw, other)


def test_sends_without_a_queue_are_distributed_one_by_one(raw: RawClient) -> None:
    raw.create("T", queues=2)
    opaques = post_together(raw, "T", [{"queue": -1}] * 64)
    assert {raw.answer(opaque).ext["queueId"] for opaque in opaques} == {"0", "1"}


def _plain(reply: Any, topic: str) -> Any:
    """Normalise what differs: the topic's name, and positions in shared topics."""
    if reply is None:
        return None
    code, remark, ext = reply
    return code, remark and remark.replace(topic, "T"), ext.keys(), ext.get("laneDuplicate"), ext.get("laneExpected")


@pytest.fixture
def limited(start: Start, monkeypatch: pytest.MonkeyPatch) -> RunningBroker:
    """With a stopped clock: delayed messages could otherwise arrive in one topic and not yet in the other."""
    monkeypatch.setattr(send_handler, "MAX_PROPERTIES_BYTES", 90)
    return start(max_body_bytes=64, clock=ManualClock())


def test_a_burst_that_meets_a_failing_disk_is_refused_as_a_whole(start: Start) -> None:
    disk = FaultyDisk()
    running = start(disk=disk)
    raw = running.connect()
    assert raw.send("T", b"0").code == 0
    gate = Gate(running)
    disk.failing_write = 1
    waiting = post_together(raw, "T", [{"body": b"lost"}] * 10)
    gate.open()
    assert [raw.answer(opaque).code for opaque in waiting] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 10
    assert bodies(raw.read("T")) == [b"0"]


def test_a_burst_above_the_pending_limit_is_stored_as_far_as_it_fits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like single sends: the first ones are stored, the others answered "busy"."""
    monkeypatch.setattr(group_commit, "MAX_PENDING_BYTES", 2**20)
    running = start()
    raw, gate = running.connect(), Gate(running)
    waiting = post_together(raw, "T", [{"body": b"x" * 60_000, "stamp": f"p.0.{n}"} for n in range(30)])
    last = raw.answer(waiting.pop()).code  # refused at once: the broker has read them all
    gate.open()
    codes = [*(raw.answer(opaque).code for opaque in waiting), last]
    assert codes[0] == 0
    assert ResponseCode.SYSTEM_BUSY in codes
    assert set(codes) <= {0, ResponseCode.SYSTEM_BUSY, ResponseCode.SEQUENCE_GAP}
    assert raw.bounds("T") == (0, codes.count(0))


def test_stamps_of_a_burst_are_known_after_a_restart(start: Start, folder: Path) -> None:
    running = start()
    raw = running.connect()
    sends: Sends = [{"body": b"%d" % n, "stamp": f"p.0.{n}"} for n in range(20)]
    for opaque in post_together(raw, "T", sends):
        assert raw.answer(opaque).code == 0
    running.stop()
    again = start().connect()
    assert again.send("T", stamp="p.0.19").ext["laneDuplicate"] == "true"
    assert again.send("T", stamp="p.0.20").ext["queueOffset"] == "20"


def test_a_fault_in_the_broker_does_not_close_the_connection(raw: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    raw.send("T")
    monkeypatch.setattr(GroupCommit, "append", broken)
    waiting = post_together(raw, "T", [{"body": b"x"}] * 5)
    assert {raw.answer(opaque).code for opaque in waiting} == {ResponseCode.SYSTEM_ERROR}
    assert raw.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).code == 0


def test_sends_that_alternate_between_queues_are_stored_in_the_order_of_each(raw: RawClient) -> None:
    opaques = post_together(raw, "T", [{"queue": n % 4, "stamp": f"p.0.{n // 4}"} for n in range(200)])
    assert [raw.answer(opaque).code for opaque in opaques] == [0] * 200
    assert [raw.bounds("T", queue) for queue in range(4)] == [(0, 50)] * 4


def test_retries_that_arrive_together_are_delayed(raw: RawClient) -> None:
    """They go to the queue of their delay level first, not to the topic that they name."""
    waiting = post_together(raw, "%RETRY%g", [{"body": b"again", "times": 1}] * 5)
    replies = [raw.answer(opaque) for opaque in waiting]
    assert [(reply.code, reply.ext["queueId"]) for reply in replies] == [(0, "0")] * 5
    assert raw.bounds("%RETRY%g") == (0, 0)
