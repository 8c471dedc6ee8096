"""A client that sends bare frames, so that a test sees what any client would see."""

import socket
from collections import deque
from typing import Any, Self

import msgspec
from tests.wire.encoding import encode_batch

from lanemq.model.java_hash import tag_code
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import connect
from lanemq.wire.bodies import ConsumerData, HeartbeatData, LockRequest, LockResponse, QueueBody, SubscriptionData
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import ONEWAY_BIT, Command, FrameDecoder, decode_command, encode_command
from lanemq.wire.headers import PullHeader, SendHeader
from lanemq.wire.properties import encode_properties
from lanemq.wire.record import RecordView, record_starts

BROKER = "lanemq"
SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1
SECONDS = 60.0


class RawClient:
    """One connection. Answers are found by opaque; requests of the broker are kept in `notices`."""

    def __init__(self, address: str, source: str | None = None) -> None:
        """`source` is the address to connect from; any of 127.0.0.0/8 is a loopback address."""
        target = parse_address(address)
        self.socket = (
            connect(target) if source is None else socket.create_connection(target, source_address=(source, 0))
        )
        self.socket.settimeout(SECONDS)
        self.notices: deque[Command] = deque()
        self._answers: dict[int, Command] = {}
        self._order: list[int] = []
        self._decoder = FrameDecoder()
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    @property
    def opaque(self) -> int:
        """That of the newest frame."""
        return self._opaque

    # frames

    def frame(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", flag: int = 0
    ) -> tuple[int, bytes]:
        self._opaque += 1
        return self._opaque, encode_command(Command(code, self._opaque, flag, ext or {}, body))

    def post(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", flag: int = 0) -> int:
        opaque, frame = self.frame(code, ext, body, flag)
        self.socket.sendall(frame)
        return opaque

    def oneway(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> int:
        return self.post(code, ext, body, ONEWAY_BIT)

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return self.answer(self.post(code, ext, body))

    def answer(self, opaque: int) -> Command:
        while opaque not in self._answers:
            self._receive()
        return self._answers.pop(opaque)

    def answered(self) -> list[int]:
        """The opaques of all answers so far, in the order of their arrival."""
        return list(self._order)

    def notice(self) -> Command:
        """The next request of the broker."""
        while not self.notices:
            self._receive()
        return self.notices.popleft()

    def is_closed_by_broker(self) -> bool:
        """Wait for the end of the connection; answers that come before it are kept."""
        try:
            while True:
                self._receive()
        except EOFError:
            return True
        except TimeoutError:
            return False

    def _receive(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError("the broker closed the connection")
        for frame in self._decoder.feed(data):
            command = decode_command(frame)
            if command.is_response:
                assert command.opaque not in self._answers, "answered twice"
                self._answers[command.opaque] = command
                self._order.append(command.opaque)
            else:
                self.notices.append(command)

    # requests

    def send(self, topic: str, body: bytes = b"hello", **more: Any) -> Command:
        return self.answer(self.post_send(topic, body, **more))

    def post_send(self, topic: str, body: bytes = b"hello", flag: int = 0, **more: Any) -> int:
        return self.post(RequestCode.SEND_MESSAGE_V2, send_ext(topic, **more), body, flag)

    def send_batch(self, topic: str, items: list[tuple[bytes, dict[str, str]]], queue: int = 0) -> Command:
        body = encode_batch([(0, part, encode_properties(properties)) for part, properties in items])
        return self.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext(topic, queue=queue, batch=True), body)

    def pull(self, topic: str, offset: int = 0, **more: Any) -> Command:
        return self.answer(self.post_pull(topic, offset, **more))

    def post_pull(self, topic: str, offset: int = 0, **more: Any) -> int:
        return self.post(RequestCode.PULL_MESSAGE, pull_ext(topic, offset, **more))

    def read(self, topic: str, queue: int = 0, offset: int = 0, tags: str = "*") -> list[RecordView]:
        """Everything from an offset to the end of a queue."""
        found: list[RecordView] = []
        while True:
            reply = self.pull(topic, offset, queue=queue, tags=tags, most=4096, laneMaxBytes="4000000")
            assert reply.code in (0, 19, 20), reply
            found += records(reply)
            offset = int(reply.ext["nextBeginOffset"])
            if offset >= int(reply.ext["maxOffset"]):
                return found

    def create(self, topic: str, queues: int = 4, **more: str) -> Command:
        ext = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6", **more}
        return self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    def heartbeat(self, client: str, group: str = "g", topics: dict[str, str] | None = None, **more: str) -> Command:
        return self.ask(RequestCode.HEART_BEAT, more, heartbeat(client, group, topics or {}))

    def keep_alive(self, client: str, serial: int = 0, group: str = "g") -> Command:
        return self.ask(RequestCode.LOCK_BATCH_MQ, {"laneKeepAlive": str(serial)}, lock_body(client, "T", (), group))

    def lock(self, client: str, topic: str = "T", queues: tuple[int, ...] = (0,), **more: str) -> LockResponse:
        group = more.pop("group", "g")
        reply = self.ask(RequestCode.LOCK_BATCH_MQ, more, lock_body(client, topic, queues, group))
        assert reply.code == 0, reply
        return LockResponse.decode(reply.body)

    def lane_lock(self, client: str, topic: str = "T", millis: int = 5000, **more: Any) -> LockResponse:
        return self.lock(client, topic, laneLeaseMillis=str(millis), **more)

    def unlock(self, client: str, topic: str = "T", queues: tuple[int, ...] = (0,), **more: str) -> Command:
        group = more.pop("group", "g")
        return self.ask(RequestCode.UNLOCK_BATCH_MQ, more, lock_body(client, topic, queues, group))

    def commit(self, offset: int, topic: str = "T", queue: int = 0, group: str = "g", **more: str) -> Command:
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset), **more}
        return self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    def committed(self, topic: str = "T", queue: int = 0, group: str = "g") -> int | None:
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "laneClient": "reader"}
        reply = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        return int(reply.ext["offset"]) if reply.code == 0 else None

    def bounds(self, topic: str, queue: int = 0) -> tuple[int, int]:
        ext = {"topic": topic, "queueId": str(queue)}
        low, high = self.ask(RequestCode.GET_MIN_OFFSET, ext), self.ask(RequestCode.GET_MAX_OFFSET, ext)
        return int(low.ext["offset"]), int(high.ext["offset"])

    def runtime(self) -> dict[str, str]:
        table: dict[str, str] = msgspec.json.decode(self.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        return table


def send_ext(
    topic: str,
    queue: int = 0,
    properties: dict[str, str] | None = None,
    stamp: str | None = None,
    batch: bool = False,
    times: int = 0,
    most: int | None = None,
    sys_flag: int = 0,
) -> dict[str, str]:
    extra = {} if stamp is None else {"LANE_STAMP": stamp}
    return SendHeader(
        producer_group="p",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue,
        sys_flag=sys_flag,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=encode_properties({**(properties or {}), **extra}),
        reconsume_times=times,
        max_reconsume_times=most,
        batch=batch,
    ).to_ext()


def pull_ext(
    topic: str,
    offset: int,
    queue: int = 0,
    hold: int = 0,
    tags: str | None = "*",
    commit: int | None = None,
    most: int = 32,
    group: str = "g",
    **more: str,
) -> dict[str, str]:
    flags = (SUSPEND if hold else 0) | (SUBSCRIPTION if tags is not None else 0) | (COMMIT if commit is not None else 0)
    header = PullHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=most,
        sys_flag=flags,
        commit_offset=-1 if commit is None else commit,
        suspend_timeout_millis=hold,
        subscription=tags,
    )
    return {**header.to_ext(), **more}


def heartbeat(client: str, group: str, topics: dict[str, str]) -> bytes:
    subscriptions = []
    for topic, expression in topics.items():
        tags = [] if expression == "*" else expression.split("||")
        codes = [tag_code(tag) for tag in tags]
        subscriptions.append(
            SubscriptionData(topic=topic, sub_string=expression, tags_set=tags, code_set=codes, sub_version=1)
        )
    data = ConsumerData(group_name=group, subscription_data_set=subscriptions)
    return HeartbeatData(client_id=client, consumer_data_set=[data]).encode()


def lock_body(client: str, topic: str, queues: tuple[int, ...], group: str) -> bytes:
    mine = [QueueBody(topic=topic, broker_name=BROKER, queue_id=queue) for queue in queues]
    return LockRequest(client_id=client, consumer_group=group, mq_set=mine).encode()


def records(reply: Command) -> list[RecordView]:
    return [RecordView(reply.body, start) for start in record_starts(reply.body)]


def bodies(found: list[RecordView]) -> list[bytes]:
    return [record.body for record in found]


def nothing_more(sock: socket.socket) -> bool:
    """Whether nothing waits to be read right now."""
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(SECONDS)
