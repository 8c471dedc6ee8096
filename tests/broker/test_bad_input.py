"""Invalid input is answered with an error or closes its connection; it never stops the broker or reaches the disk."""

import logging
import struct
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, heartbeat, lock_body, pull_ext, send_ext
from tests.broker.running import ManualClock, RunningBroker

from lanemq.broker.handlers import send
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.log.store import Store
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import RESPONSE_BIT, Command, encode_command, pack_frame

BAD_NAMES = ["", "a/b", "../../etc/passwd", "..", "a\0b", "a b", "x" * 128, "ü", "a\nb"]


def alive(raw: RawClient) -> bool:
    return raw.send("Alive").code == 0


def test_unknown_request_is_answered_and_connection_lives(raw: RawClient) -> None:
    reply = raw.ask(9999)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "9999" in (reply.remark or "")
    assert alive(raw)


@pytest.mark.parametrize(
    ("code", "ext", "field"),
    [
        (RequestCode.SEND_MESSAGE_V2, {"a": "p"}, "field b"),
        (RequestCode.SEND_MESSAGE_V2, {**send_ext("T"), "e": "zero"}, "field e"),
        (RequestCode.SEND_MESSAGE_V2, {**send_ext("T"), "e": "99999999999"}, "field e"),
        (RequestCode.SEND_MESSAGE, {"topic": "T"}, "producerGroup"),
        (RequestCode.PULL_MESSAGE, {"topic": "T"}, "consumerGroup"),
        (RequestCode.PULL_MESSAGE, {**pull_ext("T", 0), "queueOffset": "x"}, "queueOffset"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0"}, "commitOffset"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, "QueueNums"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "delayLevel": "0"}, "offset"),
        (RequestCode.UNREGISTER_CLIENT, {}, "clientID"),
    ],
)
def test_missing_or_mistyped_field_is_named(raw: RawClient, code: int, ext: dict[str, str], field: str) -> None:
    reply = raw.ask(code, ext)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert field in (reply.remark or "")
    assert alive(raw)


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.HEART_BEAT])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"mqSet":7,"consumerDataSet":7}', b"\xff\xfe", b"{}"])
def test_malformed_body_is_refused_and_connection_lives(raw: RawClient, code: int, body: bytes) -> None:
    assert raw.ask(code, body=body).code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    assert alive(raw)


@pytest.mark.parametrize("queue", ["-1", "99999999999999999999999999"])
def test_lock_of_an_impossible_queue_is_refused(raw: RawClient, queue: str) -> None:
    """The second one does not fit into the database and once failed on the log thread."""
    body = f'{{"clientId":"c","consumerGroup":"g","mqSet":[{{"topic":"T","brokerName":"b","queueId":{queue}}}]}}'
    assert raw.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode()).code == ResponseCode.SYSTEM_ERROR
    assert alive(raw)


def test_malformed_header_with_an_opaque_is_answered(raw: RawClient) -> None:
    raw.socket.sendall(pack_frame(0, b'{"code":"x","opaque":77}', b""))
    assert raw.answer(77).code == ResponseCode.SYSTEM_ERROR
    assert alive(raw)


GARBAGE = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zero length": bytes(8),
    "length of 3": struct.pack(">I", 3) + b"abc",
    "negative length": struct.pack(">i", -5) + b"abcd",
    "over the limit": struct.pack(">II", 17 * 1024 * 1024, 10),
    "header longer than its frame": struct.pack(">II", 10, 200) + bytes(6),
    "unknown serialize type": struct.pack(">II", 10, 7 << 24 | 2) + bytes(6),
    "header that is not JSON": pack_frame(0, b"nonsense", b""),
    "header without opaque": pack_frame(0, b'{"code":10}', b""),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_closes_its_connection_with_one_log_line(
    broker: RunningBroker, folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lanemq"):
        with broker.connect() as raw:
            raw.socket.sendall(GARBAGE[kind])
            assert raw.is_closed_by_broker()
        broker.settle()
        lines = [line for line in caplog.messages if "closing" in line]
    assert len(lines) == 1
    assert "protocol" in lines[0]
    other = broker.connect()
    assert other.bounds("T") == (0, 0)
    assert alive(other)


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("00000604000000000000020000000000")


@pytest.mark.parametrize("piece", [1, 3, len(HTTP2_PREFACE)])
def test_a_grpc_client_is_named_with_what_to_use_instead(
    broker: RunningBroker, piece: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It comes again at once; the log does not repeat itself."""
    with caplog.at_level(logging.WARNING, "lanemq"):
        for _ in range(3):
            with broker.connect() as raw:
                for start in range(0, len(HTTP2_PREFACE), piece):
                    try:
                        raw.socket.sendall(HTTP2_PREFACE[start : start + piece])
                    except (BrokenPipeError, ConnectionResetError):
                        break
                assert raw.is_closed_by_broker()
    (line,) = caplog.messages
    assert "a client at 127.0.0.1 cannot use this port: it speaks HTTP/2, as RocketMQ's gRPC clients do" in line
    assert "rocketmq-client-java" in line
    assert "use Java rocketmq-client, Go rocketmq-client-go/v2" in line


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it sends an HTTP request"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "it answers as an HTTP server"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), "it begins a TLS handshake"),
    ],
)
def test_other_protocols_are_named(
    broker: RunningBroker, first: bytes, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lanemq"), broker.connect() as raw:
        raw.socket.sendall(first)
        assert raw.is_closed_by_broker()
    assert named in caplog.text


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_topic_is_refused_everywhere(broker: RunningBroker, folder: Path, name: str) -> None:
    raw = broker.connect()
    refused = [
        raw.send(name).code,
        raw.create(name).code,
        raw.pull(name).code,
        raw.commit(1, topic=name).code,
        raw.heartbeat("c", "g", {name: "*"}).code,
        raw.ask(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", name, (0,), "g")).code,
        raw.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c", name, (0,), "g")).code,
        raw.ask(
            RequestCode.QUERY_MESSAGE,
            {"topic": name, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"},
        ).code,
        raw.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": name, "queueId": "0"}).code,
        raw.ask(RequestCode.GET_MAX_OFFSET, {"topic": name, "queueId": "0"}).code,
        raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}).code,
        raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code,
    ]
    assert 0 not in refused
    assert alive(raw)
    broker.tick()
    assert topics_on_disk(broker) == {"Alive"}
    assert outside(folder) == set()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_group_is_refused_everywhere(broker: RunningBroker, folder: Path, name: str) -> None:
    raw = broker.connect()
    raw.create("T")
    position = "0"
    refused = [
        raw.heartbeat("c", name, {"T": "*"}).code,
        raw.pull("T", group=name, commit=5).code,
        raw.commit(1, group=name).code,
        raw.ask(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", "T", (0,), name)).code,
        raw.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": name, "topic": "T", "queueId": "0"}).code,
        raw.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": position, "group": name, "delayLevel": "0"}).code,
        raw.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "T", "group": name, "timestamp": "-1", "isForce": "true"},
        ).code,
        raw.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"' + name.encode() + b'"}').code,
    ]
    assert 0 not in refused
    assert alive(raw)
    broker.tick()
    assert topics_on_disk(broker) == {"Alive", "T"}
    state = broker.broker.running.context.state
    assert (ProgressRows(state).offsets(), state.leases(), state.groups()) == ([], [], {})
    assert broker.call(broker.broker.running.context.progress.groups) == ()
    assert outside(folder) == set()


def test_heartbeat_with_one_bad_name_changes_nothing(broker: RunningBroker) -> None:
    """All names are checked before the first one is used."""
    raw = broker.connect()
    assert raw.heartbeat("c", "good", {"T": "*", "a/b": "*"}).code != 0
    assert raw.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "good"}).code != 0
    assert "%RETRY%good" not in topics_on_disk(broker)


def test_commit_for_an_unknown_topic_or_queue_is_refused(broker: RunningBroker) -> None:
    raw = broker.connect()
    raw.create("T", 2)
    assert raw.commit(5, topic="Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    assert raw.commit(5, queue=2).code == ResponseCode.INVALID_PARAMETER
    assert raw.commit(5, queue=-1).code == ResponseCode.INVALID_PARAMETER


def test_oneway_requests_are_never_answered(broker: RunningBroker) -> None:
    raw = broker.connect()
    raw.create("T")
    oneways = [
        raw.oneway(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"one"),
        raw.oneway(RequestCode.SEND_MESSAGE_V2, {}, b""),
        raw.oneway(9999),
        raw.oneway(RequestCode.PULL_MESSAGE, pull_ext("T", 0)),
        raw.oneway(RequestCode.PULL_MESSAGE, pull_ext("T", 0, queue=3, hold=20_000)),
        raw.oneway(RequestCode.PULL_MESSAGE, pull_ext("Nowhere", 0)),
        raw.oneway(RequestCode.HEART_BEAT, body=heartbeat("c", "g", {"T": "*"})),
        raw.oneway(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", "T", (0,), "g")),
        raw.oneway(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c", "T", (0,), "g")),
        raw.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, {}),
        raw.oneway(RequestCode.GET_BROKER_RUNTIME_INFO),
        raw.oneway(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}),
        raw.oneway(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "U", "readQueueNums": "1", "writeQueueNums": "1"}),
        raw.oneway(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"}),
    ]
    broker.tick()
    assert raw.send("T", b"two").code == 0
    assert set(raw.answered()).isdisjoint(oneways)
    held = broker.call(lambda: len(broker.broker.running.context.polls))
    assert held == 0, "no client waits for the answer of a oneway pull"
    assert bodies(raw.read("T")) == [b"one", b"two"], "carried out all the same"


def test_response_frames_from_a_client_are_ignored(raw: RawClient) -> None:
    for opaque in (1, 2, 77):
        raw.socket.sendall(encode_command(Command(RequestCode.SEND_MESSAGE_V2, opaque, RESPONSE_BIT, send_ext("T"))))
    assert alive(raw)
    assert raw.bounds("T") == (0, 0)


def test_a_thousand_frames_in_one_segment_are_stored_in_order(raw: RawClient) -> None:
    frames = [raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"%d" % i) for i in range(1000)]
    raw.socket.sendall(b"".join(frame for _, frame in frames))
    offsets = [int(raw.answer(opaque).ext["queueOffset"]) for opaque, _ in frames]
    assert offsets == list(range(1000))
    assert bodies(raw.read("T")) == [b"%d" % i for i in range(1000)]


def test_a_frame_split_at_every_byte_is_one_request(broker: RunningBroker) -> None:
    raw = broker.connect()
    opaque, frame = raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"body")
    for byte in frame:
        raw.socket.sendall(bytes([byte]))
    assert raw.answer(opaque).code == 0
    for cut in range(1, len(frame)):
        opaque, frame = raw.frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        raw.socket.sendall(frame[:cut])
        raw.socket.sendall(frame[cut:])
        assert raw.answer(opaque).ext["offset"] == "1"


@pytest.fixture
def few_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "MAX_PROPERTIES_BYTES", 50)


@pytest.mark.usefixtures("few_properties")
def test_too_large_body_or_properties_are_refused(start: Start) -> None:
    raw = start(max_body_bytes=100).connect()
    assert raw.send("T", bytes(101)).code == ResponseCode.MESSAGE_ILLEGAL
    assert raw.send("T", properties={"k": "v" * 60}).code == ResponseCode.MESSAGE_ILLEGAL
    assert raw.send("T", bytes(100), properties={"k": "v" * 40}).code == 0


@pytest.mark.parametrize("large", [(bytes(101), {"k": "v"}), (b"x", {"k": "v" * 60})])
@pytest.mark.usefixtures("few_properties")
def test_batch_with_one_message_too_large_is_refused_as_a_whole(
    start: Start, large: tuple[bytes, dict[str, str]]
) -> None:
    raw = start(max_body_bytes=100).connect()
    small = (b"x", {"k": "v"})
    assert raw.send_batch("T", [small, large, small]).code == ResponseCode.MESSAGE_ILLEGAL
    assert raw.send_batch("T", [small, small]).ext["queueOffset"] == "0"


def topics_on_disk(broker: RunningBroker) -> set[str]:
    return set(broker.broker.running.context.state.topics())


def outside(folder: Path) -> set[str]:
    """The files beside the data folder, where a path in a name could have put one."""
    return {path.name for path in folder.iterdir()} - {"data"}


def test_the_remark_of_a_refusal_does_not_repeat_the_clients_words(raw: RawClient) -> None:
    """The client already says that the broker refused."""
    refused = raw.pull("Nowhere")
    assert (refused.code, refused.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic Nowhere does not exist")


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": "0", "delayLevel": "1"}),
    ],
)
def test_a_fault_that_a_client_repeats_is_one_traceback_a_minute(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
    ext: dict[str, str],
) -> None:
    clock = ManualClock()
    raw = start(clock=clock).connect()

    def fail(store: Store, position: int) -> bytes:
        raise RuntimeError(f"unforeseen at {position}")

    monkeypatch.setattr(Store, "read_at", fail)
    assert {raw.ask(code, ext).code for _ in range(50)} == {ResponseCode.SYSTEM_ERROR}
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    clock.passed += 60_000
    raw.ask(code, ext)
    assert "49 more like this were not logged" in caplog.records[1].getMessage()


def test_a_damaged_message_that_a_client_reads_again_and_again_is_a_limited_number_of_lines(
    broker: RunningBroker, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = broker.connect()
    raw.send("T", b"hurt")
    log = next((folder / "data" / "log").glob("*.log"))
    log.write_bytes(log.read_bytes().replace(b"hurt", b"HURT"))
    for _ in range(150):
        raw.pull("T", 0)
    assert len([each for each in caplog.records if "damaged" in each.getMessage()]) == 101
