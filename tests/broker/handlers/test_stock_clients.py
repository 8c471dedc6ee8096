"""What clients in other languages send and expect, where it differs from Java's clients."""

import logging

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, send_ext
from tests.broker.running import RunningBroker
from tests.wire.encoding import encode_batch

from lanemq.broker.handlers import send
from lanemq.wire import bodies
from lanemq.wire.batch import MAX_BATCH_MESSAGES
from lanemq.wire.bodies import ConsumerIdList
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import BINARY, JSON, Command, encode_command
from lanemq.wire.stats_bodies import ConsumerConnection

CPP_HEADER = (
    b'{"code":34,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"Y9TPyz1Rx7fWMSvRmVAxSQ2fIPc="},'
    b'"flag":0,"language":"CPP","opaque":2,"remark":"","version":63}\n'
)
CPP_HEARTBEAT = (
    b'{"clientID":"32668-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
    b'"groupName":"g","messageModel":1,"subscriptionDataSet":['
    b'{"subString":"*","subVersion":"1794847864200","topic":"%RETRY%g"},'
    b'{"subString":"*","subVersion":"1794847864200","topic":"T"}]}]}\n'
)
"""A heartbeat of the C++ client (librocketmq 1.2, from PyPI's `rocketmq` 0.4.4) as it was on the wire."""


@pytest.fixture
def running(start: Start) -> RunningBroker:
    broker = start()
    broker.connect().create("T", 4)
    return broker


def beat_like_cpp(raw: RawClient, body: bytes = CPP_HEARTBEAT) -> int:
    """Send a C++ client's heartbeat byte for byte; the code of the answer."""
    size = 4 + len(CPP_HEADER) + len(body)
    raw.socket.sendall(size.to_bytes(4, "big") + len(CPP_HEADER).to_bytes(4, "big") + CPP_HEADER + body)
    return raw.answer(2).code


def members(raw: RawClient) -> list[str]:
    reply = raw.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    return ConsumerIdList.decode(reply.body).consumer_id_list if reply.code == 0 else []


def connections(raw: RawClient) -> ConsumerConnection:
    reply = raw.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert reply.code == 0
    return ConsumerConnection.decode(reply.body)


def test_a_heartbeat_with_enums_as_numbers_is_accepted(running: RunningBroker) -> None:
    cpp, other = running.connect(), running.connect()
    assert beat_like_cpp(cpp) == 0
    assert members(other) == ["32668-127.0.0.1@DEFAULT"]
    seen = connections(other)
    assert (seen.consume_type, seen.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert seen.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    other.send("T")
    assert cpp.pull("T", tags=None).code == 0, "its subscription is known"


def test_a_client_with_binary_headers_is_answered_in_kind(running: RunningBroker) -> None:
    """The Rust client rocketmq-client-v4 reads offsets from binary headers only, and asked again and again."""
    raw = running.connect()
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
    for opaque, code in ((71, RequestCode.QUERY_CONSUMER_OFFSET), (72, 9999)):
        raw.socket.sendall(encode_command(Command(code, opaque, 0, ext, serialize_type=BINARY)))
    found, refused = raw.answer(71), raw.answer(72)
    assert (found.code, found.ext, found.serialize_type) == (0, {"offset": "0"}, BINARY)
    assert (refused.code, refused.serialize_type) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, BINARY)
    assert raw.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).serialize_type == JSON


@pytest.mark.parametrize("code", [400, 401])
def test_a_client_that_asks_for_assigned_queues_must_choose_them_itself(running: RunningBroker, code: int) -> None:
    """Java's members with `setClientRebalance(false)` do so after any answer but success."""
    reply = running.connect().ask(code, body=b'{"consumerGroup":"g","topic":"T"}')
    assert (reply.code, reply.remark) == (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {code} not supported",
    )


def test_enums_as_numbers_name_the_same_values_as_texts(running: RunningBroker) -> None:
    cpp, other = running.connect(), running.connect()
    body = CPP_HEARTBEAT.replace(b'"consumeFromWhere":0', b'"consumeFromWhere":4')
    beat_like_cpp(cpp, body.replace(b'"consumeType":1', b'"consumeType":0').replace(b'Model":1', b'Model":0'))
    seen = connections(other)
    assert (seen.consume_type, seen.message_model) == ("CONSUME_ACTIVELY", "BROADCASTING")
    assert seen.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert other.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%g"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_without_numbered_enums_a_cpp_client_receives_nothing(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Control: the decoder as it was before. The refusal is in the log."""

    def texts_only(names: tuple[str, ...], value: str | int) -> str:
        raise bodies.BodyError("an enum is expected as text")

    monkeypatch.setattr("lanemq.broker.handlers.groups.enum_text", texts_only)
    cpp = running.connect()
    with caplog.at_level(logging.WARNING):
        assert beat_like_cpp(cpp) == ResponseCode.SYSTEM_ERROR
    assert cpp.pull("T", tags=None).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert "CPP client at 127.0.0.1 is refused: an enum is expected as text" in caplog.text


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"clientID":""}',
        CPP_HEARTBEAT.replace(b'"messageModel":1', b'"messageModel":7'),
        CPP_HEARTBEAT.replace(b'"groupName":"g"', b'"groupName":"not a group"'),
        CPP_HEARTBEAT.replace(b'"topic":"T"', b'"topic":"not a topic"'),
    ],
)
def test_a_refused_heartbeat_is_a_warning_that_is_not_repeated(
    running: RunningBroker, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert beat_like_cpp(running.connect(), body) != 0
    warnings = [record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage()]
    (text,) = warnings
    assert "127.0.0.1 is refused: " in text
    assert members(running.connect()) == []


def send_largest(raw: RawClient) -> int:
    return raw.post(
        RequestCode.SEND_BATCH_MESSAGE, send_ext("T", batch=True), encode_batch([(0, b"x", "")] * MAX_BATCH_MESSAGES)
    )


def stored(raw: RawClient) -> int:
    return int(raw.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).ext["offset"])


def test_the_largest_batch_is_answered(running: RunningBroker) -> None:
    """All ids of its messages would not fit into a header."""
    raw = running.connect()
    reply = raw.answer(send_largest(raw))
    assert (reply.code, len(reply.ext["msgId"].split(","))) == (0, send.MAX_ANSWERED_IDS)
    assert stored(raw) == MAX_BATCH_MESSAGES


def test_control_with_all_ids_the_largest_batch_is_stored_and_not_answered(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "MAX_ANSWERED_IDS", MAX_BATCH_MESSAGES)
    raw = running.connect()
    opaque = send_largest(raw)
    assert raw.send("T").code == 0
    assert stored(raw) == MAX_BATCH_MESSAGES + 1
    assert opaque not in raw.answered()


def test_a_batch_of_too_many_messages_is_refused_before_it_is_stored(running: RunningBroker) -> None:
    raw = running.connect()
    body = encode_batch([(0, b"", "")] * (MAX_BATCH_MESSAGES + 1))
    reply = raw.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext("T", batch=True), body)
    assert (reply.code, reply.remark) == (13, "the batch has more than 10000 messages: split it")
    assert stored(raw) == 0
