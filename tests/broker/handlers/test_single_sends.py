"""A usual single send has the same outcome as one that is decoded as any other request.

Two brokers on one event loop get the same bytes at the same times. One of them decodes all requests alike, as a broker
with users does.
"""

import asyncio
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.raw_client import pull_ext, send_ext
from tests.broker.running import ManualClock
from tests.faulty_disk import FaultyDisk
from tests.log.conftest import memory_folder
from tests.net.wire import Wire

from lanemq.broker.app import Broker
from lanemq.broker.config import BrokerOptions
from lanemq.broker.connections import Connections
from lanemq.broker.context import BrokerContext
from lanemq.broker.storage.group_commit import MAX_PENDING_BYTES, Done
from lanemq.core.brokering.topic_table import Permission
from lanemq.log.queue_index import QueueIndex
from lanemq.log.store import Store
from lanemq.model.errors import DiskFull
from lanemq.net.address import Address
from lanemq.net.serving.peer import Peer
from lanemq.net.serving.server import Listener, Server
from lanemq.testing.sim.broker import SimListener
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command, Frame, FrameDecoder, decode_command, encode_command

LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}


class SilentServer(Server):
    """Listens to nothing."""

    def accept_from(self, listener: Listener) -> None: ...


class OneBroker(Broker):
    """A broker without sockets and without housekeeping."""

    def __init__(self, folder: Path, *, reads_sends: bool, durable: bool) -> None:
        self.clock, self.disk = ManualClock(), FaultyDisk()
        options = BrokerOptions(
            folder, listen=Address("127.0.0.1", 10911), durable=durable, max_body_bytes=300, segment_bytes=65_536
        )
        super().__init__(options, self.clock, partial(Store, disk=self.disk))
        self._reads_sends = reads_sends
        self.taken = 0
        self.peers: list[tuple[Peer, Wire]] = []

    def _new_listener(self) -> Listener:
        return SimListener(self.options.listen)

    def _new_server(self, context: BrokerContext, connections: Connections) -> Server:
        store_sends = connections._store_sends
        assert store_sends is not None

        def counted(peer: Peer, frames: deque[Frame]) -> bool:
            stored = store_sends(peer, frames)
            self.taken += stored
            return stored

        connections._store_sends = counted if self._reads_sends else None
        return SilentServer(connections, reads=context.group_commit, outbox=context.outbox, nanoseconds=lambda: 0)

    def connect(self) -> None:
        peer, wire = Peer(self.running.server), Wire(peername=("10.0.0.9", 4711))
        peer.number = len(self.peers) + 1
        peer.connection_made(wire)
        self.peers.append((peer, wire))

    @property
    def context(self) -> BrokerContext:
        return self.running.context

    def next_sequence(self, topic: str, queue: int, producer: str) -> int:
        known = self.context.producers._producers.get((topic, queue, producer))
        return 0 if known is None else known.next_sequence

    def state(self) -> dict[str, object]:
        """Everything that a send changes."""
        context, commit = self.context, self.context.group_commit
        traffic = context.traffic
        return {
            "replies": [wire.written.replace(str(self.options.data).encode(), b"") for _, wire in self.peers],
            "log": [path.read_bytes() for path in sorted((self.options.data / "log").glob("*.log"))],
            "queues": {queue: context.store.bounds(*queue) for queue in context.store.queues()},
            "index": [bytes(queue.tail) for queue in context.store._queues],
            "stamps": context.producers.export(),
            "unsaved stamps": sorted(context.producers.dirty().rows),
            "traffic": (sorted(traffic.topics()), list(traffic.put_counts), traffic.failed_puts, traffic.put_millis),
            "windows": traffic.put.last(60_000, now=self.clock.now()),
            "commits": (commit.appended, commit.pending_bytes, commit.times.commit.count, commit.times.flush.count),
            "refusals": dict(context.counters.refusals.counts),
            "health": (type(commit.paused), type(commit.failure), commit.longest_wait(self.clock.now())),
            "seen": [peer.known for peer, _ in self.peers],
        }


class Pair:
    """Two brokers that get the same."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.short = OneBroker(folder / "a", reads_sends=True, durable=durable)
        self.ordinary = OneBroker(folder / "b", reads_sends=False, durable=durable)
        self.both = self.short, self.ordinary
        self.opaque = 0
        for broker in self.both:
            self.run(broker.start())
            broker.running.ticking.cancel()
            for _ in range(2):
                self.on_loop(broker.connect)
        for topic in ("T", "U", "closed"):
            self.send(topic, body=b"creates the topic")
        for broker in self.both:
            closed = broker.context.topics.get("closed")
            assert closed is not None
            broker.context.topics._topics["closed"] = closed._replace(permission=Permission.READ)

    def run(self, awaitable: Any) -> Any:
        return self.loop.run_until_complete(awaitable)

    def on_loop(self, function: Callable[[], object]) -> None:
        async def run() -> None:
            function()

        self.run(run())

    def send(
        self,
        topic: str = "T",
        more: dict[str, str] | None = None,
        *,
        body: bytes = b"b",
        peer: int = 0,
        code: int = 310,
        flag: int = 0,
    ) -> None:
        ext = send_ext(topic) | (more or {})
        if code == RequestCode.SEND_MESSAGE:
            ext = {LONG_NAMES.get(name, name): value for name, value in ext.items()}
        self.opaque += 1
        self.feed(encode_command(Command(code, self.opaque, flag, ext, body)), peer)

    def feed(self, data: bytes, peer: int = 0) -> None:
        """Both get the bytes as one read, and answer."""
        for broker in self.both:
            self.on_loop(partial(broker.peers[peer][0].data_received, data))
            self.run(broker.context.group_commit.drained())
            self.run(broker.context.row_thread.call(lambda: None))

    def check(self, *but: str) -> None:
        short, ordinary = (
            {name: each for name, each in broker.state().items() if name not in but} for broker in self.both
        )
        assert short == ordinary

    def replies(self) -> list[Command]:
        return [decode_command(frame) for frame in FrameDecoder().feed(self.short.peers[0][1].written)]

    def close(self) -> None:
        for broker in self.both:
            broker.disk.space = None
            for peer, _ in broker.peers:
                self.on_loop(partial(peer.connection_lost, None))
            self.run(broker.stop())
        self.loop.close()


@pytest.fixture(params=[False, True], ids=["relaxed", "durable"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    folder = memory_folder()
    made = Pair(folder, durable=request.param)
    yield made
    made.close()
    shutil.rmtree(folder)


KEY = "__SHARDINGKEY\x01k\x02"
EXTRAS = [
    "",
    "TAGS\x01red\x02",
    "TAGS\x01\x02",
    "XTAGS\x01red\x02",
    "DELAY\x013\x02",
    "DELAY\x010\x02",
    "XDELAY\x019\x02",
    "TIMER_DELAY_SEC\x015\x02",
    "note\x01TIMER_\x02",
    "REPLY_TO_CLIENT\x01c\x02",
    "XREPLY_TO_CLIENT\x01c\x02",
    "LANE_STAMP\x01other.1.0\x02",
    "LANE_STAMP\x01no stamp\x02",
    'q\x01"\\/ \x02',
    "u\x01\u00fc\U0001f600\x02",
    "long\x01" + "x" * 200 + "\x02",
]
"""Properties of which the ordinary handler treats some in a way of their own."""

SENDS = st.fixed_dictionaries(
    {"extra": st.sampled_from(EXTRAS), "ahead": st.sampled_from([0, 0, 0, 0, -1, 1])},
    optional={
        "topic": st.sampled_from(["U", "closed", "SCHEDULE_TOPIC_XXXX", "%RETRY%g"]),
        "queue": st.sampled_from([1, 3, 99]),
        "producer": st.sampled_from(["q", None]),
        "epoch": st.sampled_from([2, 0]),
        "body": st.sampled_from([b"", bytes(range(256)), bytes(301)]),
        "last": st.sampled_from(["WAIT\x01true", "WAIT\x01true\x02"]),
        "code": st.just(10),
        "flag": st.sampled_from([1, 2]),
        "sys_flag": st.sampled_from([1, 4, 8]),
        "peer": st.just(1),
        "pause": st.sampled_from([3, 20_000]),
    },
)


def send_like(pair: Pair, what: dict[str, Any]) -> None:
    topic, queue, producer = what.get("topic", "T"), what.get("queue", 0), what.get("producer", "p")
    for broker in pair.both:
        broker.clock.passed += what.get("pause", 0)
    text = KEY + what["extra"]
    if producer is not None:
        sequence = max(0, pair.ordinary.next_sequence(topic, queue, producer) + what["ahead"])
        text += f"LANE_STAMP\x01{producer}.{what.get('epoch', 1)}.{sequence}\x02"
    more = {"e": str(queue), "f": str(what.get("sys_flag", 0)), "g": str(7 + pair.opaque)}
    more["i"] = text + what.get("last", "")
    how = {name: what[name] for name in ("body", "peer", "code", "flag") if name in what}
    pair.send(topic, more, **how)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(sends=st.lists(SENDS, min_size=1, max_size=4), times=st.integers(1, 3))
def test_a_send_has_the_outcome_of_any_other_request(pair: Pair, sends: list[dict[str, Any]], times: int) -> None:
    for what in sends:
        for _ in range(times):
            send_like(pair, what)
    pair.check()


def test_a_send_that_needs_treatment_of_its_own_gets_it_behind_plain_ones(pair: Pair) -> None:
    """Each kind comes three times, with and without a stamp."""
    kinds: list[dict[str, Any]] = [{"extra": extra} for extra in EXTRAS]
    kinds += [{"topic": "closed"}, {"topic": "SCHEDULE_TOPIC_XXXX"}, {"topic": "%RETRY%g"}, {"topic": "new"}]
    kinds += [{"queue": 99}, {"body": bytes(301)}, {"flag": 2}, {"flag": 1}, {"sys_flag": 4}, {"sys_flag": 8}]
    kinds += [{"code": 10}, {"code": 320}, {"last": "WAIT\x01true"}, {"epoch": 2}, {"ahead": 1}, {"ahead": -1}]
    for kind in kinds:
        for producer in ("p", None):
            what = {"extra": "", "ahead": 0, "producer": producer}
            for each in (what, what, what | kind, what | kind, what | kind):
                send_like(pair, each)
            pair.check()


def test_a_new_file_of_the_log_begins_where_it_does_otherwise(pair: Pair) -> None:
    for number in range(170):
        pair.send(more=stamped(number), body=bytes(300))
    pair.check()
    assert len(list((pair.short.options.data / "log").glob("*.log"))) > 1


def test_a_send_inside_the_body_of_another_is_not_taken_for_one(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    inner = encode_command(Command(310, 98, 0, send_ext("T") | stamped(3), b"i"))
    outer = encode_command(Command(310, 97, 0, send_ext("T") | stamped(3), inner))
    pair.feed(outer[: -len(inner)])
    pair.feed(inner)
    pair.check()
    assert pair.replies()[-1].opaque == 97


def stamped(number: int, queue: int = 0) -> dict[str, str]:
    return {"e": str(queue), "i": f"__SHARDINGKEY\x01k\x02LANE_STAMP\x01p.1.{number}\x02"}


def test_usual_sends_are_read_as_such(pair: Pair) -> None:
    """Without this, the comparison would prove nothing."""
    before = pair.short.taken
    for number in range(20):
        pair.send(more=stamped(number))
    assert pair.short.taken - before == 20
    assert [reply.code for reply in pair.replies()] == [0] * len(pair.replies())
    pair.check()


def test_a_send_that_finds_the_disk_full_is_answered_busy_and_undone(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    taken = pair.short.taken
    for broker in pair.both:
        broker.disk.space = 40
    pair.send(more=stamped(3))
    assert pair.short.taken == taken + 1
    assert "no space left" in str(pair.replies()[-1].remark)
    pair.check()
    for broker in pair.both:
        broker.disk.space = None
        pair.on_loop(broker.context.group_commit.resume)
    for number in (3, 4):
        pair.send(more=stamped(number))
    assert [reply.code for reply in pair.replies()[-2:]] == [0, 0]
    pair.check()


def test_a_send_that_is_refused_is_counted_once(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    for broker in pair.both:
        pair.on_loop(partial(broker.context.group_commit.pause, DiskFull("too little space")))
    pair.send(more=stamped(3))
    pair.check()
    for broker in pair.both:
        pair.on_loop(broker.context.group_commit.resume)
        broker.context.group_commit.pending_bytes = MAX_PENDING_BYTES
    pair.send(more=stamped(3))
    assert "too much waits" in str(pair.replies()[-1].remark)
    pair.check()
    for broker in pair.both:
        broker.context.group_commit.pending_bytes = 0


def test_a_failed_write_makes_the_broker_read_only(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    taken = pair.short.taken
    for broker in pair.both:
        broker.disk.failing_write = 1
    for number in (3, 4):
        pair.send(more=stamped(number))
    assert pair.short.taken == taken + 2
    assert pair.short.read_only
    pair.check()


def test_a_held_pull_is_woken(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    pull = encode_command(Command(RequestCode.PULL_MESSAGE, 1, 0, pull_ext("T", 4, hold=20_000)))
    pair.feed(pull, peer=1)
    assert pair.short.peers[1][1].written == b""
    pair.send(more=stamped(3))
    assert pair.short.peers[1][1].written
    pair.check()


def test_a_topic_that_may_not_be_written_any_more_is_refused(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    for broker in pair.both:
        topics = broker.context.topics._topics
        topics["T"] = topics["T"]._replace(permission=Permission.READ)
    pair.send(more=stamped(3))
    assert "may not be written" in str(pair.replies()[-1].remark)
    pair.check()


class LateRows:
    """Rows that messages rely on, and that are on disk when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Done] = []

    def needed_by(self, queues: Iterable[QueueIndex]) -> bool:
        return True

    def save_first(self, done: Done) -> None:
        self.waiting.append(done)

    def cut_dropped(self, end: int) -> None: ...


def test_a_send_that_relies_on_rows_waits_for_them(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    broker, rows = pair.short, LateRows()
    peer, wire = broker.peers[0]
    before = broker.state()["log"]
    wire.writes.clear()
    broker.context.group_commit._rows, kept = rows, broker.context.group_commit._rows
    data = encode_command(Command(310, 99, 0, send_ext("T") | stamped(3), b"b"))
    pair.on_loop(partial(peer.data_received, data))
    assert len(rows.waiting) == 1
    assert wire.written == b""
    assert broker.state()["log"] == before
    broker.context.group_commit._rows = kept
    pair.on_loop(partial(rows.waiting[0], None))
    pair.run(broker.context.group_commit.drained())
    assert wire.written


def test_a_send_waits_while_the_log_thread_may_change_the_log(pair: Pair) -> None:
    for number in range(3):
        pair.send(more=stamped(number))
    broker, opened = pair.short, threading.Event()
    peer, wire = broker.peers[0]
    before = broker.state()["log"]
    wire.writes.clear()
    data = encode_command(Command(310, 99, 0, send_ext("T") | stamped(3), b"b"))
    try:
        pair.on_loop(partial(broker.context.thread.submit, opened.wait, lambda *_: None))
        pair.on_loop(partial(peer.data_received, data))
        assert wire.written == b""
        assert broker.state()["log"] == before
    finally:
        opened.set()
    pair.run(broker.context.group_commit.drained())
    assert wire.written


def test_short_writes_are_continued(pair: Pair) -> None:
    for broker in pair.both:
        broker.disk.max_write = 50
    for number in range(5):
        pair.send(more=stamped(number))
    pair.check()
