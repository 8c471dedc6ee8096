"""Requests that the broker passes on to a client: consume directly, running info, replies; and message trace."""

import logging
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, records, send_ext
from tests.broker.running import ManualClock, RunningBroker
from tests.chaos.members import until

from lanemq.broker import notices
from lanemq.wire.bodies import HeartbeatData, ProducerData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import RESPONSE_BIT, Command, encode_command
from lanemq.wire.properties import decode_properties
from lanemq.wire.record import RecordView
from lanemq.wire.signing import Credentials, sign

REPLY_TOPIC = "LaneMQ_REPLY_TOPIC"


@pytest.fixture
def running(start: Start) -> RunningBroker:
    broker = start(clock=ManualClock())
    broker.connect().create("T", 1)
    return broker


def member(running: RunningBroker, name: str = "a") -> RawClient:
    raw = running.connect()
    assert raw.heartbeat(name, topics={"T": "*"}).code == 0
    raw.notice()
    return raw


def reply_to(raw: RawClient, question: Command, code: int = 0, body: bytes = b"", remark: str | None = None) -> None:
    raw.socket.sendall(encode_command(Command(code, question.opaque, RESPONSE_BIT, {}, body, remark)))


# consume directly


def test_consume_directly_brings_the_message_to_the_member(running: RunningBroker) -> None:
    asked, operator = member(running), running.connect()
    message_id = operator.send("T", b"again, please", properties={"KEYS": "k"}).ext["msgId"]
    ext = {"consumerGroup": "g", "clientId": "a", "msgId": message_id}
    question = operator.post(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    relayed = asked.notice()
    record = RecordView(relayed.body)
    assert (record.topic, record.body, record.properties["KEYS"]) == ("T", b"again, please", "k")
    assert (relayed.ext["brokerName"], relayed.ext["consumerGroup"]) == ("lanemq", "g")
    reply_to(asked, relayed, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert operator.answer(question).body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize("message_id", ["", "nonsense", "7F000001000026940000000000FFFFFF", "not sent at all"])
def test_consume_directly_needs_a_message_that_exists(running: RunningBroker, message_id: str) -> None:
    """A Java client cannot bear a request without a message: its connection broke."""
    asked, operator = member(running), running.connect()
    ext = {"consumerGroup": "g", "clientId": "a", "msgId": message_id}
    assert operator.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext).code == ResponseCode.SYSTEM_ERROR
    asked.bounds("T")
    assert not asked.notices


def test_a_member_that_does_not_answer_is_named(running: RunningBroker) -> None:
    asked, operator = member(running), running.connect()
    ext = {"consumerGroup": "g", "clientId": "a"}
    question = operator.post(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
    asked.notice()
    running.run_for(notices.ANSWER_MS - 500)
    assert question not in operator.answered()
    running.run_for(500)
    late = operator.answer(question)
    assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "<g> <a> did not answer" in (late.remark or "")


def test_a_member_that_leaves_does_not_answer(running: RunningBroker) -> None:
    asked, operator = member(running), running.connect()
    question = operator.post(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "a"})
    asked.notice()
    asked.close()
    assert operator.answer(question).code == ResponseCode.CONSUME_MSG_TIMEOUT


def test_too_many_questions_at_once_give_up_the_oldest(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "MAX_QUESTIONS", 2)
    asked, operator = member(running), running.connect()
    ext = {"consumerGroup": "g", "clientId": "a"}
    first, second, third = (operator.post(RequestCode.GET_CONSUMER_RUNNING_INFO, ext) for _ in range(3))
    assert operator.answer(first).code == ResponseCode.CONSUME_MSG_TIMEOUT
    for _ in range(3):
        reply_to(asked, asked.notice(), body=b"x")
    assert [operator.answer(each).body for each in (second, third)] == [b"x", b"x"]


# request and reply


def producer(running: RunningBroker, name: str) -> RawClient:
    raw = running.connect()
    body = HeartbeatData(client_id=name, producer_data_set=[ProducerData(group_name="askers")]).encode()
    assert raw.ask(RequestCode.HEART_BEAT, {}, body).code == 0
    return raw


def reply_message(client_id: str | None) -> dict[str, str]:
    properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "TTL": "3000"}
    return send_ext(
        REPLY_TOPIC, properties=properties if client_id is None else {**properties, "REPLY_TO_CLIENT": client_id}
    )


def test_a_request_tells_its_receiver_where_to_reply(running: RunningBroker) -> None:
    """RocketMQ's clients build the reply topic from the property CLUSTER, which the broker adds."""
    raw = running.connect()
    asking = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}
    raw.send("T", b"question", properties=asking)
    raw.send("T", b"statement", properties={"KEYS": "k"})
    question, statement = records(raw.pull("T"))
    assert question.properties == {**asking, "CLUSTER": "LaneMQ"}
    assert "CLUSTER" not in statement.properties
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": REPLY_TOPIC}).code == 0


def test_a_request_among_sends_that_arrive_together_is_complete(running: RunningBroker) -> None:
    raw = running.connect()
    asking = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}
    frames = [
        raw.frame(RequestCode.SEND_MESSAGE_V2, send_ext("T", properties=asking if number == 3 else {}), b"%d" % number)
        for number in range(6)
    ]
    raw.socket.sendall(b"".join(frame for _, frame in frames))
    for opaque, _ in frames:
        assert raw.answer(opaque).code == 0
    found = records(raw.pull("T"))
    assert [record.body for record in found] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert ["CLUSTER" in record.properties for record in found] == [False, False, False, True, False, False]


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_is_pushed_to_the_client_that_asked(running: RunningBroker, code: int) -> None:
    asker, stranger, replier = producer(running, "asker"), producer(running, "other"), running.connect()
    ext = reply_message("asker")
    if code == RequestCode.SEND_REPLY_MESSAGE:
        names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId"}
        names |= {"f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes"}
        ext = {names[name]: value for name, value in ext.items() if name in names}
    sent = replier.post(code, ext, b"the answer")
    pushed = asker.notice()
    assert (pushed.code, pushed.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"the answer")
    assert (pushed.ext["topic"], pushed.ext["queueId"], pushed.ext["sysFlag"]) == (REPLY_TOPIC, "0", "0")
    assert pushed.ext["storeHost"] == running.address
    assert pushed.ext["bornHost"] == "{}:{}".format(*replier.socket.getsockname())
    properties = decode_properties(pushed.ext["properties"])
    assert (properties["CORRELATION_ID"], properties["MSG_TYPE"]) == ("c1", "reply")
    assert properties["PUSH_REPLY_TIME"].isdigit()
    assert sent not in replier.answered(), "the sender learns whether the client has it"
    reply_to(asker, pushed)
    done = replier.answer(sent)
    assert (done.code, done.ext["queueId"], done.ext["queueOffset"]) == (0, "0", "0")
    assert [record.body for record in replier.read(REPLY_TOPIC)] == [b"the answer"]
    stranger.bounds("T")
    assert not stranger.notices


def test_a_reply_that_does_not_arrive_is_an_error(running: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    asker, replier = producer(running, "asker"), running.connect()

    def outcome(opaque: int) -> tuple[int, str]:
        reply = replier.answer(opaque)
        return reply.code, reply.remark or ""

    code = RequestCode.SEND_REPLY_MESSAGE_V2
    with caplog.at_level(logging.WARNING):
        missing = outcome(replier.post(code, reply_message("absent"), b"x"))
    assert missing == (ResponseCode.SYSTEM_ERROR, "push reply message fail, channel of <absent> not found.")
    assert "channel of <absent> not found" in caplog.text
    assert outcome(replier.post(code, reply_message(None), b"x"))[0] == ResponseCode.SYSTEM_ERROR
    refused = replier.post(code, reply_message("asker"), b"x")
    reply_to(asker, asker.notice(), ResponseCode.SYSTEM_ERROR, remark="no such request")
    assert outcome(refused) == (ResponseCode.SYSTEM_ERROR, "push reply message to asker fail.")
    silent = replier.post(code, reply_message("asker"), b"x")
    asker.notice()
    running.run_for(notices.ANSWER_MS)
    assert outcome(silent) == (ResponseCode.SYSTEM_ERROR, "push reply message to asker fail.")


# message trace


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn-hangzhou", "my-trace"])
def test_trace_topics_take_what_clients_trace(running: RunningBroker, topic: str) -> None:
    raw = running.connect()
    traced = raw.send("T")
    assert traced.ext["TRACE_ON"] == "true"
    unique = "7F0000010A2C18B4AAC2" + "0" * 12
    stored = raw.send(topic, b"Pub\x01...", properties={"KEYS": unique})
    assert stored.code == 0
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0
    ext = {"topic": topic, "key": unique, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    running.settle()
    assert b"Pub\x01..." in raw.ask(RequestCode.QUERY_MESSAGE, ext).body


def test_the_trace_topic_exists_before_it_is_used(start: Start) -> None:
    """Even where topics are not created automatically: every send is answered with TRACE_ON."""
    raw = start(auto_create_topics=False).connect()
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "RMQ_SYS_TRACE_TOPIC"}).code == 0
    assert raw.send("RMQ_SYS_TRACE_TOPIC").code == 0
    assert raw.send("rmq_sys_other").code != 0, "control: other system topics take no sends"


# request and reply on a broker with users

USERS = """
[[user]]
access_key = "root"
secret_key = "secret of root"
admin = true

[[user]]
access_key = "other"
secret_key = "secret of other"
topics = { Mine = "PUB", LaneMQ_REPLY_TOPIC = "PUB" }
"""


class SignedClient(RawClient):
    """Signs as a user."""

    def __init__(self, running: RunningBroker, user: str) -> None:
        self._credentials = Credentials(user, f"secret of {user}")
        super().__init__(running.address)

    def frame(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", flag: int = 0
    ) -> tuple[int, bytes]:
        self._opaque += 1
        command = Command(code, self._opaque, flag, ext or {}, body)
        sign(command, self._credentials)
        return self._opaque, encode_command(command)

    def is_producer(self, name: str) -> "SignedClient":
        body = HeartbeatData(client_id=name, producer_data_set=[ProducerData(group_name="askers")]).encode()
        assert self.ask(RequestCode.HEART_BEAT, {}, body).code == 0
        return self

    def requests(self, topic: str, name: str) -> None:
        asking = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": name, "TTL": "3000"}
        assert self.send(topic, b"question", properties=asking).code == 0


@pytest.fixture
def guarded(start: Start, folder: Path) -> RunningBroker:
    users = folder / "users.toml"
    users.write_text(USERS)
    broker = start(clock=ManualClock(), users=users)
    with SignedClient(broker, "root") as raw:
        raw.create("T", 1)
        raw.create("Mine", 1)
    return broker


def test_with_users_a_reply_reaches_the_client_that_asked_once(guarded: RunningBroker) -> None:
    with SignedClient(guarded, "root").is_producer("asker") as asker, SignedClient(guarded, "root") as replier:
        asker.requests("T", "asker")
        code, ext = RequestCode.SEND_REPLY_MESSAGE_V2, reply_message("asker")
        first = replier.post(code, ext, b"lost")
        reply_to(asker, asker.notice(), code=ResponseCode.SYSTEM_ERROR)
        assert replier.answer(first).code == ResponseCode.SYSTEM_ERROR
        repeated = replier.post(code, ext, b"the answer")
        pushed = asker.notice()
        assert pushed.body == b"the answer"
        reply_to(asker, pushed)
        assert replier.answer(repeated).code == 0
        again = replier.ask(code, ext, b"one more")
        assert again.code == ResponseCode.SYSTEM_ERROR
        assert "not found: it has left, or did not send this request" in (again.remark or "")


def test_with_users_nobody_replies_to_a_client_that_did_not_ask(guarded: RunningBroker) -> None:
    """Neither to one that sent nothing, nor to one whose name another client put into a request of its own."""
    with SignedClient(guarded, "root").is_producer("victim") as victim, SignedClient(guarded, "other") as stranger:
        code, ext = RequestCode.SEND_REPLY_MESSAGE_V2, reply_message("victim")
        assert stranger.ask(code, ext, b"made up").code == ResponseCode.SYSTEM_ERROR
        stranger.is_producer("stranger").requests("Mine", "victim")
        assert stranger.ask(code, ext, b"made up").code == ResponseCode.SYSTEM_ERROR
        victim.bounds("T")
        assert not victim.notices


def test_requests_without_a_reply_take_a_limited_amount_of_memory(
    guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MAX_ASKED", 2)
    with SignedClient(guarded, "root").is_producer("asker") as asker:
        for number in range(4):
            asker.send("T", properties={"CORRELATION_ID": f"c{number}", "REPLY_TO_CLIENT": "asker"})
        found = guarded.broker.running.context.notices
        known = [found.peer_that_asked("asker", f"c{number}") is not None for number in range(4)]
        assert known == [False, False, True, True]
        asker.close()
        until("the connection is forgotten", lambda: not found._asked)
