"""Under overload the broker answers "busy", stays within its limits, and recovers."""

import socket

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, pull_ext, send_ext
from tests.broker.running import Gate, RunningBroker

from lanemq.broker.connections import Connections
from lanemq.broker.storage import group_commit
from lanemq.core.brokering.refusals import RefusalReason
from lanemq.net.serving import peer, server
from lanemq.net.serving.outbox import Outbox
from lanemq.net.serving.peer import WRITE_HIGH_WATER_BYTES, Peer
from lanemq.wire.codes import RequestCode, ResponseCode

MIB = 1024 * 1024


@pytest.fixture
def _little_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MAX_PENDING_BYTES", MIB)


@pytest.mark.usefixtures("_little_may_wait")
def test_sends_are_answered_busy_above_the_limit_and_accepted_again_below(start: Start) -> None:
    running = start()
    raw = running.connect()
    raw.create("T")
    gate = Gate(running)
    waiting = [raw.post_send("T", bytes(100_000)) for _ in range(30)]
    raw.bounds("T")
    assert running.call(lambda: running.broker.running.context.group_commit.pending_bytes) <= MIB
    gate.open()
    codes = [raw.answer(opaque).code for opaque in waiting]
    assert set(codes) == {0, ResponseCode.SYSTEM_BUSY}
    assert codes == sorted(codes), "those that fitted came first"
    assert len(raw.read("T")) == codes.count(0)
    assert raw.send("T").code == 0
    assert running.call(lambda: running.broker.running.context.group_commit.pending_bytes) == 0


@pytest.mark.usefixtures("_little_may_wait")
def test_repeats_that_wait_for_the_disk_are_bounded_too(start: Start) -> None:
    running = start()
    raw = running.connect()
    raw.create("T")
    gate = Gate(running)
    waiting = [raw.post_send("T", stamp="p.0.0") for _ in range(3_000)]
    raw.bounds("T")
    gate.open()
    codes = {raw.answer(opaque).code for opaque in waiting}
    assert codes == {0, ResponseCode.SYSTEM_BUSY}
    assert raw.bounds("T") == (0, 1)


@pytest.mark.usefixtures("_little_may_wait")
def test_a_send_answered_busy_leaves_no_stamp(start: Start) -> None:
    running = start()
    raw = running.connect()
    raw.create("T")
    gate = Gate(running)
    first = raw.post_send("T", bytes(900_000), stamp="p.0.0")
    second = raw.post_send("T", bytes(900_000), stamp="p.0.1")
    raw.bounds("T")
    gate.open()
    assert (raw.answer(first).code, raw.answer(second).code) == (0, ResponseCode.SYSTEM_BUSY)
    assert "laneDuplicate" not in raw.send("T", stamp="p.0.1").ext


def unsent(running: RunningBroker) -> int:
    """Bytes of unsent answers in the broker."""

    def count() -> int:
        held = 0
        for each in running.broker.running.server.peers:
            assert each._transport is not None
            held += each._outgoing_bytes + each._transport.get_write_buffer_size()
        return held

    return running.call(count)


@pytest.mark.parametrize(
    ("smaller", "limited"), [(True, True), (False, True), (False, False)], ids=["", "not smaller", "not limited"]
)
@pytest.mark.slow
def test_unsent_replies_are_bounded_over_all_connections(
    start: Start, monkeypatch: pytest.MonkeyPatch, smaller: bool, limited: bool
) -> None:
    """Each of 80 clients asks for 32 mebibytes and reads nothing. From half of the limit on they get one small reply
    each, and all of them stay connected. Controls: with large replies some are closed, and without a limit none is.
    """
    running = start()
    listening, closed = running.broker.running.server, running.broker.running.server.refusals.counts
    if not smaller:
        monkeypatch.setattr(peer, "CROWDED_BYTES", WRITE_HIGH_WATER_BYTES)
    if not limited:
        listening.unsent.limit = 1 << 40
    producer = running.connect()
    producer.create("T")
    for _ in range(32):
        producer.send("T", bytes(MIB // 32))
    for client in [running.connect() for _ in range(80)]:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        pulls = (client.frame(RequestCode.PULL_MESSAGE, pull_ext("T", 0, laneMaxBytes=str(2 * MIB))) for _ in range(32))
        client.socket.sendall(b"".join(frame for _, frame in pulls))

    def waiting() -> int:
        return sum(each.reads_slowly or each.closing for each in listening.peers)

    while running.call(waiting) + closed[RefusalReason.UNSENT_REPLIES] < 80:
        pass
    assert producer.send("T", b"others are served").code == 0
    most = server.MAX_UNSENT_BYTES + WRITE_HIGH_WATER_BYTES
    assert (closed[RefusalReason.UNSENT_REPLIES] > 0, unsent(running) < most) == (limited and not smaller, limited)


@pytest.mark.parametrize("held", [False, True])
def test_a_client_that_does_not_read_costs_bounded_memory(start: Start, held: bool) -> None:
    """A thousand pulls of a mebibyte from a client that reads nothing, answered at once or held and then answered."""
    running = start()
    producer, slow = running.connect(), running.connect()
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    producer.create("T")
    if not held:
        producer.send("T", bytes(MIB))
    hold = 20_000 if held else 0
    frames = [
        slow.frame(RequestCode.PULL_MESSAGE, pull_ext("T", 0, hold=hold, laneMaxBytes=str(2 * MIB)))
        for _ in range(1000)
    ]
    slow.socket.sendall(b"".join(frame for _, frame in frames))
    if held:
        while running.call(lambda: len(running.broker.running.context.polls)) < 1000:
            pass
        producer.send("T", bytes(MIB))
    assert producer.send("T", b"others are served").code == 0
    assert unsent(running) < WRITE_HIGH_WATER_BYTES + 3 * MIB
    if held:
        codes = [slow.answer(opaque).code for opaque, _ in frames]
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND}
    else:
        for opaque, _ in frames[:100]:
            reply = slow.answer(opaque)
            assert (reply.code, len(reply.body) > MIB) == (0, True)
        assert unsent(running) < WRITE_HIGH_WATER_BYTES + 3 * MIB


def test_connections_beyond_the_limit_are_closed(start: Start) -> None:
    running = start(max_connections=2)
    first, second = running.connect(), running.connect()
    assert first.send("T").code == second.send("T").code == 0
    with RawClient(running.address) as third:
        assert third.is_closed_by_broker()
    assert running.call(lambda: running.broker.running.context.counters.refusals.counts[RefusalReason.CONNECTIONS]) == 1
    first.close()
    while running.call(lambda: len(running.broker.running.server.peers)) > 1:
        pass
    assert running.connect().send("T").code == 0


def test_a_connection_counts_once_while_the_task_that_accepts_it_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, refusals, connected = start(max_connections=2), list[object](), Connections.connected

    def connect(connections: Connections, peer: Peer) -> None:
        connected(connections, peer)
        refusals.append(running.broker.running.server._full(peer.origin))

    monkeypatch.setattr(Connections, "connected", connect)
    assert running.connect().send("T").code == 0
    assert refusals == [None]


def test_silent_connection_is_closed(broker: RunningBroker) -> None:
    raw = broker.connect()
    raw.send("T")
    broker.call(lambda: broker.broker.running.server.close_idle(-1.0))
    assert raw.is_closed_by_broker()


def test_unfinished_frames_are_bounded_over_all_connections(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """One peer may have a whole frame unfinished, but not all of them: the one that began first is closed. The memory
    of each frame is reserved, so each counts as a whole."""
    limit = 5 * MIB // 2
    peers = {size: broker.connect() for size in (300_000, 500_000, 400_000)}
    frames = {size: raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), bytes(MIB)) for size, raw in peers.items()}
    listening = broker.broker.running.server
    listening.unfinished.limit = limit
    reserved = 0
    for size, raw in peers.items():
        raw.socket.sendall(frames[size][1][:size])
        reserved += MIB
        while reserved <= limit and broker.call(lambda: listening.unfinished.total) < reserved:
            pass
    assert peers[300_000].is_closed_by_broker()
    assert listening.refusals.counts[RefusalReason.UNFINISHED_FRAMES] == 1
    assert [each.levelname for each in caplog.records if "not finished a request are closed" in each.message] == [
        "WARNING"
    ]
    assert broker.call(lambda: listening.unfinished.total) <= limit
    listening.unfinished.limit = 4 * MIB
    for size in (500_000, 400_000):
        opaque, frame = frames[size]
        peers[size].socket.sendall(frame[size:])
        assert peers[size].answer(opaque).code == 0
    assert broker.call(lambda: listening.unfinished.total) == 0


def test_unfinished_frame_of_a_lost_connection_is_not_counted(broker: RunningBroker) -> None:
    raw = broker.connect()
    raw.socket.sendall(raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), bytes(MIB))[1][:1000])
    listening = broker.broker.running.server
    while broker.call(lambda: listening.unfinished.total) < 1000:
        pass
    raw.close()
    while broker.call(lambda: len(listening.peers)):
        pass
    assert broker.call(lambda: listening.unfinished.total) == 0


def test_a_send_is_answered_by_its_group_commit_and_not_behind_the_work_of_others(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = broker.connect()
    raw.create("T")
    # Nothing is written at the end of an iteration, as if other work had come first for ever.
    raw.socket.settimeout(10)
    monkeypatch.setattr(Outbox, "_iteration_ends", lambda _: None)
    assert raw.send("T", b"x").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("durable", [True, False])
def test_a_held_pull_is_answered_by_the_group_commit_and_not_behind_the_work_of_others(
    start: Start, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    broker = start(durable=durable)
    sender, reader = broker.connect(), broker.connect()
    sender.create("T")
    for _ in range(3):
        assert sender.send("T", b"x").code == ResponseCode.SUCCESS
    pull = reader.post_pull("T", 3, hold=20_000)
    polls = broker.broker.running.context.polls
    while not broker.call(lambda: len(polls)):
        pass
    monkeypatch.setattr(Outbox, "_iteration_ends", lambda _: None)
    reader.socket.settimeout(10)
    assert sender.send("T", b"y").code == ResponseCode.SUCCESS
    assert reader.answer(pull).code == ResponseCode.SUCCESS
