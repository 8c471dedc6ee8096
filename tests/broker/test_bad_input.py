"""Nonsense costs its sender an answer or the connection, never the broker, and leaves nothing on disk."""

import logging
import struct
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.running import Running
from tests.broker.talk import Talk, bodies, heartbeat, lock_body, pull_ext, send_ext

from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import RESPONSE_BIT, Command, encode_command, pack_frame

BAD_NAMES = ["", "a/b", "../../etc/passwd", "..", "a\0b", "a b", "x" * 128, "ü", "a\nb"]


def alive(talk: Talk) -> bool:
    return talk.send("Alive").code == 0


def test_unknown_request_is_answered_and_connection_lives(talk: Talk) -> None:
    reply = talk.ask(9999)
    assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "9999" in (reply.remark or "")
    assert alive(talk)


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
def test_missing_or_mistyped_field_is_named(talk: Talk, code: int, ext: dict[str, str], field: str) -> None:
    reply = talk.ask(code, ext)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert field in (reply.remark or "")
    assert alive(talk)


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.HEART_BEAT])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"mqSet":7,"consumerDataSet":7}', b"\xff\xfe", b"{}"])
def test_malformed_body_is_refused_and_connection_lives(talk: Talk, code: int, body: bytes) -> None:
    assert talk.ask(code, body=body).code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    assert alive(talk)


@pytest.mark.parametrize("queue", ["-1", "99999999999999999999999999"])
def test_lock_of_an_impossible_queue_is_refused(talk: Talk, queue: str) -> None:
    """The second does not fit into the database and once stopped the log thread's job."""
    body = f'{{"clientId":"c","consumerGroup":"g","mqSet":[{{"topic":"T","brokerName":"b","queueId":{queue}}}]}}'
    assert talk.ask(RequestCode.LOCK_BATCH_MQ, body=body.encode()).code == ResponseCode.SYSTEM_ERROR
    assert alive(talk)


def test_malformed_header_with_an_opaque_is_answered(talk: Talk) -> None:
    talk.socket.sendall(pack_frame(0, b'{"code":"x","opaque":77}', b""))
    assert talk.answer(77).code == ResponseCode.SYSTEM_ERROR
    assert alive(talk)


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
    "header that is no JSON": pack_frame(0, b"nonsense", b""),
    "header without opaque": pack_frame(0, b'{"code":10}', b""),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_closes_its_connection_with_one_log_line(
    broker: Running, folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lanemq"):
        with broker.talk() as talk:
            talk.socket.sendall(GARBAGE[kind])
            assert talk.is_closed_by_broker()
        broker.settle()
        lines = [line for line in caplog.messages if "closing" in line]
    assert len(lines) == 1
    assert "protocol" in lines[0]
    other = broker.talk()
    assert other.bounds("T") == (0, 0)
    assert alive(other)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_topic_is_refused_everywhere(broker: Running, folder: Path, name: str) -> None:
    talk = broker.talk()
    refused = [
        talk.send(name).code,
        talk.create(name).code,
        talk.pull(name).code,
        talk.commit(1, topic=name).code,
        talk.heartbeat("c", "g", {name: "*"}).code,
        talk.ask(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", name, (0,), "g")).code,
        talk.ask(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c", name, (0,), "g")).code,
        talk.ask(
            RequestCode.QUERY_MESSAGE,
            {"topic": name, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"},
        ).code,
        talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": name, "queueId": "0"}).code,
        talk.ask(RequestCode.GET_MAX_OFFSET, {"topic": name, "queueId": "0"}).code,
        talk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name}).code,
        talk.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code,
    ]
    assert 0 not in refused
    assert alive(talk)
    broker.tick()
    assert topics_on_disk(broker) == {"Alive"}
    assert outside(folder) == set()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_group_is_refused_everywhere(broker: Running, folder: Path, name: str) -> None:
    talk = broker.talk()
    talk.create("T")
    position = "0"
    refused = [
        talk.heartbeat("c", name, {"T": "*"}).code,
        talk.pull("T", group=name, commit=5).code,
        talk.commit(1, group=name).code,
        talk.ask(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", "T", (0,), name)).code,
        talk.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": name, "topic": "T", "queueId": "0"}).code,
        talk.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": position, "group": name, "delayLevel": "0"}).code,
        talk.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "T", "group": name, "timestamp": "-1", "isForce": "true"},
        ).code,
        talk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"' + name.encode() + b'"}').code,
    ]
    assert 0 not in refused
    assert alive(talk)
    broker.tick()
    assert topics_on_disk(broker) == {"Alive", "T"}
    state = broker.broker._parts.state
    assert (state.offsets(), state.leases(), state.groups()) == ([], [], {})
    assert broker.call(broker.broker._parts.offsets.groups) == ()
    assert outside(folder) == set()


def test_heartbeat_with_one_bad_name_changes_nothing(broker: Running) -> None:
    """All names are looked at before the first is used."""
    talk = broker.talk()
    assert talk.heartbeat("c", "good", {"T": "*", "a/b": "*"}).code != 0
    assert talk.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "good"}).code != 0
    assert "%RETRY%good" not in topics_on_disk(broker)


def test_commit_for_an_unknown_topic_or_queue_is_refused(broker: Running) -> None:
    talk = broker.talk()
    talk.create("T", 2)
    assert talk.commit(5, topic="Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    assert talk.commit(5, queue=2).code == ResponseCode.INVALID_PARAMETER
    assert talk.commit(5, queue=-1).code == ResponseCode.INVALID_PARAMETER


def test_oneway_requests_are_never_answered(broker: Running) -> None:
    talk = broker.talk()
    talk.create("T")
    oneways = [
        talk.oneway(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"one"),
        talk.oneway(RequestCode.SEND_MESSAGE_V2, {}, b""),
        talk.oneway(9999),
        talk.oneway(RequestCode.PULL_MESSAGE, pull_ext("T", 0)),
        talk.oneway(RequestCode.PULL_MESSAGE, pull_ext("T", 0, queue=3, hold=20_000)),
        talk.oneway(RequestCode.PULL_MESSAGE, pull_ext("Nowhere", 0)),
        talk.oneway(RequestCode.HEART_BEAT, body=heartbeat("c", "g", {"T": "*"})),
        talk.oneway(RequestCode.LOCK_BATCH_MQ, body=lock_body("c", "T", (0,), "g")),
        talk.oneway(RequestCode.UNLOCK_BATCH_MQ, body=lock_body("c", "T", (0,), "g")),
        talk.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, {}),
        talk.oneway(RequestCode.GET_BROKER_RUNTIME_INFO),
        talk.oneway(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}),
        talk.oneway(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "U", "readQueueNums": "1", "writeQueueNums": "1"}),
        talk.oneway(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"}),
    ]
    broker.tick()
    assert talk.send("T", b"two").code == 0
    assert set(talk.answered()).isdisjoint(oneways)
    assert broker.call(lambda: len(broker.broker._parts.polls)) == 0, "nobody waits for the answer of a oneway pull"
    assert bodies(talk.read("T")) == [b"one", b"two"], "carried out all the same"


def test_response_frames_from_a_client_are_ignored(talk: Talk) -> None:
    for opaque in (1, 2, 77):
        talk.socket.sendall(encode_command(Command(RequestCode.SEND_MESSAGE_V2, opaque, RESPONSE_BIT, send_ext("T"))))
    assert alive(talk)
    assert talk.bounds("T") == (0, 0)


def test_a_thousand_frames_in_one_segment_are_stored_in_order(talk: Talk) -> None:
    frames = [talk.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"%d" % i) for i in range(1000)]
    talk.socket.sendall(b"".join(frame for _, frame in frames))
    offsets = [int(talk.answer(opaque).ext["queueOffset"]) for opaque, _ in frames]
    assert offsets == list(range(1000))
    assert bodies(talk.read("T")) == [b"%d" % i for i in range(1000)]


def test_a_frame_split_at_every_byte_is_one_request(broker: Running) -> None:
    talk = broker.talk()
    opaque, frame = talk.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"body")
    for byte in frame:
        talk.socket.sendall(bytes([byte]))
    assert talk.answer(opaque).code == 0
    for cut in range(1, len(frame)):
        opaque, frame = talk.frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        talk.socket.sendall(frame[:cut])
        talk.socket.sendall(frame[cut:])
        assert talk.answer(opaque).ext["offset"] == "1"


def test_too_large_body_or_properties_are_refused(start: Start) -> None:
    talk = start(max_body_bytes=100, max_properties_bytes=50).talk()
    assert talk.send("T", bytes(101)).code == ResponseCode.MESSAGE_ILLEGAL
    assert talk.send("T", properties={"k": "v" * 60}).code == ResponseCode.MESSAGE_ILLEGAL
    assert talk.send("T", bytes(100), properties={"k": "v" * 40}).code == 0


@pytest.mark.parametrize("large", [(bytes(101), {"k": "v"}), (b"x", {"k": "v" * 60})])
def test_batch_with_one_message_too_large_is_refused_as_a_whole(
    start: Start, large: tuple[bytes, dict[str, str]]
) -> None:
    talk = start(max_body_bytes=100, max_properties_bytes=50).talk()
    small = (b"x", {"k": "v"})
    assert talk.send_batch("T", [small, large, small]).code == ResponseCode.MESSAGE_ILLEGAL
    assert talk.send_batch("T", [small, small]).ext["queueOffset"] == "0"


def topics_on_disk(broker: Running) -> set[str]:
    return set(broker.broker._parts.state.topics())


def outside(folder: Path) -> set[str]:
    """What lies beside the data folder, where a path trick would have put something."""
    return {path.name for path in folder.iterdir()} - {"data"}


def test_refusal_is_worded_once(talk: Talk) -> None:
    """The client says that the broker refused; said by both, it would stand in every message twice."""
    refused = talk.pull("Nowhere")
    assert (refused.code, refused.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic Nowhere does not exist")
