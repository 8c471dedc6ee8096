"""A name server and broker in one, with faults on demand.

It runs on an event loop in a thread of its own, so that blocking and asyncio clients use the same broker.
It checks stamps with `core/brokering/dedup`, as the real broker does; with `lane=False` it behaves like a stock broker.
"""

import asyncio
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

import pytest
from tests.wire.encoding import BatchItem, split_batch

from lanemq.core.brokering.dedup import Duplicate, Fenced, Fresh, Gap, ProducerTable
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address
from lanemq.net.serving.peer import Peer
from lanemq.net.serving.server import Listener, Server
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, Frame, decode_command, encode_response
from lanemq.wire.compression import decompress
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import decode_properties, find_stamp
from lanemq.wire.route_bodies import BrokerData, QueueData, TopicRouteData


class Fault(Enum):
    """What happens to one send request."""

    LOSE_REQUEST = "it never arrived"
    LOSE_REPLY = "stored, the answer is lost"
    HANG_UP = "the connection ends before it is stored"
    HANG_UP_AFTER = "the connection ends after it was stored"
    BUSY = "the broker is busy"
    REFUSE = "the broker finds it illegal"
    LATE = "it is worked on after what came behind it"
    UNCONFIRMED = "stored, but the replicas of the broker did not confirm it"


Faults = Callable[[SendHeader, int], Fault | None]
"""Takes a request and its number (1, 2, ...), and returns its fault, if any."""


@dataclass(frozen=True)
class Stored:
    body: bytes
    properties: dict[str, str]
    request: SendHeader

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class FakeTopic:
    queues: int = 4
    ordered: bool = False
    messages: dict[int, list[Stored]] = field(default_factory=lambda: defaultdict(list))


class FakeBroker:
    """Use as a context manager; `address` is for clients, everything else for tests."""

    def __init__(self, *, lane: bool = True, late_seconds: float = 0.02) -> None:
        self.lane = lane
        self.topics: dict[str, FakeTopic] = {}
        self.faults: Faults = lambda header, number: None
        self.refuses: Callable[[bytes], bool] = lambda body: False
        self.requests: list[SendHeader] = []
        self.codes: Counter[int] = Counter()
        self.connections = 0
        self.answers: dict[int, Callable[[Command], tuple[int, dict[str, str], bytes]]] = {}
        self.remarks: dict[int, str] = {}
        """The remark of `answers` with a code."""
        self.address = Address("127.0.0.1", 0)
        self._late = late_seconds
        self._producers = ProducerTable()
        self._sends = 0
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    # for tests

    def create(self, topic: str, queues: int = 4, *, ordered: bool = False) -> None:
        self.topics[topic] = FakeTopic(queues, ordered)

    def stored(self, topic: str, queue: int) -> list[str]:
        return [message.text for message in self.topics[topic].messages[queue]]

    def everything(self, topic: str) -> list[Stored]:
        return [message for queue in self.topics[topic].messages.values() for message in queue]

    def hang_up(self) -> None:
        """Closes every connection, as a broker that restarts does."""
        self._call(self._close_peers())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The broker's process is gone: connections are refused."""
        self.stop()
        yield
        self.start()

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Stops reading, as a process after SIGSTOP: connections stay open."""
        awake, slept = threading.Event(), threading.Event()

        def sleep() -> None:
            slept.set()
            awake.wait()

        self._loop.call_soon_threadsafe(sleep)
        slept.wait()
        try:
            yield
        finally:
            awake.set()

    def stop(self) -> None:
        """Stops listening; `start` listens again at the same address."""
        assert self._server is not None
        self._call(self._server.close())

    def start(self) -> None:
        self._call(self._listen())

    def forget_producers(self) -> None:
        self._producers = ProducerTable()

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: "asyncio.Coroutine[None, None, None]") -> None:  # type: ignore[name-defined]
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self) -> None:
        self._server = Server(self)
        listener = Listener(self.address)
        self._server.accept_from(listener)
        self.address = listener.address

    async def _close_peers(self) -> None:
        assert self._server is not None
        for peer in tuple(self._server.peers):
            peer.close("test")

    # the server's callbacks

    def connected(self, peer: Peer) -> None:
        self.connections += 1

    def closed(self, peer: Peer) -> None:
        pass

    def received(self, peer: Peer, frames: deque[Frame]) -> None:
        command = decode_command(frames.popleft())
        self.codes[command.code] += 1
        if command.code in self.answers:
            code, ext, body = self.answers[command.code](command)
            peer.send(encode_response(command.opaque, code, ext, body, remark=self.remarks.get(code)))
        elif command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            self._route(peer, command)
        elif command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self._send(peer, command)
        elif command.code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            peer.send(encode_response(command.opaque))
        else:
            peer.send(encode_response(command.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))

    def _route(self, peer: Peer, command: Command) -> None:
        name = command.ext["topic"]
        topic = FakeTopic(8) if name == "TBW102" else self.topics.get(name)
        if topic is None:
            peer.send(encode_response(command.opaque, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic"))
            return
        route = TopicRouteData(
            broker_datas=[
                BrokerData(
                    broker_name="fake",
                    broker_addrs={0: str(self.address)},
                    lane_features=3 if self.lane else 0,
                )
            ],
            queue_datas=[QueueData(broker_name="fake", read_queue_nums=topic.queues, write_queue_nums=topic.queues)],
            order_topic_conf=f"fake:{topic.queues}" if topic.ordered else "",
        )
        peer.send(encode_response(command.opaque, body=route.encode()))

    def _send(self, peer: Peer, command: Command) -> None:
        header = SendHeader.from_ext_v2(command.ext)
        self.requests.append(header)
        self._sends += 1
        match self.faults(header, self._sends):
            case None:
                peer.send(self._store(header, command))
            case Fault.LOSE_REQUEST:
                pass
            case Fault.LOSE_REPLY:
                self._store(header, command)
            case Fault.HANG_UP:
                peer.close("fault")
            case Fault.HANG_UP_AFTER:
                self._store(header, command)
                peer.close("fault")
            case Fault.BUSY:
                peer.send(encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark="[OVERLOAD]busy"))
            case Fault.REFUSE:
                peer.send(encode_response(command.opaque, ResponseCode.MESSAGE_ILLEGAL, remark="illegal"))
            case Fault.UNCONFIRMED:
                peer.send(self._store(header, command, ResponseCode.FLUSH_SLAVE_TIMEOUT))
            case Fault.LATE:
                self._loop.call_later(self._late, lambda: peer.send(self._store(header, command)))

    def _store(self, header: SendHeader, command: Command, code: int = ResponseCode.SUCCESS) -> bytes:
        if header.topic not in self.topics and not header.default_topic:
            return encode_response(command.opaque, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        topic = self.topics.setdefault(header.topic, FakeTopic(header.default_topic_queue_nums))
        if header.batch:
            items = split_batch(command.body)
        else:
            items = [BatchItem(0, decompress(header.sys_flag, command.body), header.properties)]
        if any(self.refuses(item.body) for item in items):
            return encode_response(command.opaque, ResponseCode.MESSAGE_ILLEGAL, remark="illegal")
        queue = topic.messages[header.queue_id]
        offset, skip, repeat = QueueOffset(len(queue)), 0, False
        stamp = find_stamp(items[0].properties_text)
        if self.lane and stamp is not None:
            match self._producers.judge(header.topic, header.queue_id, stamp, len(items)):
                case Fresh(skip, known):
                    offset = offset if known is None else known
                case Duplicate(known):
                    offset, skip, repeat = QueueOffset(known or 0), len(items), True
                case Gap(expected):
                    return encode_response(
                        command.opaque,
                        ResponseCode.SEQUENCE_GAP,
                        {"laneExpected": str(expected)},
                        remark=f"{expected} is expected, not {stamp}",
                    )
                case Fenced(epoch):
                    return encode_response(command.opaque, ResponseCode.PRODUCER_FENCED, remark=f"epoch {epoch}")
            if not repeat:
                fresh = stamp._replace(sequence=stamp.sequence + skip)
                self._producers.record(
                    header.topic,
                    header.queue_id,
                    fresh,
                    len(items) - skip,
                    QueueOffset(len(queue)),
                    stored_at=Millis(1),
                )
        queue.extend(Stored(item.body, decode_properties(item.properties_text), header) for item in items[skip:])
        ext = {"msgId": "0" * 32, "queueId": str(header.queue_id), "queueOffset": str(offset)}
        if self.lane:
            ext |= {"laneStored": "relaxed"} | ({"laneDuplicate": "true"} if repeat else {})
        return encode_response(command.opaque, code, ext)


def serving(*, queues: int = 4, lane: bool = True) -> Any:
    """A fixture, called as the name that it is assigned to: a broker with `orders`, by key, and `metrics`."""

    @pytest.fixture
    def running() -> Iterator[FakeBroker]:
        with FakeBroker(lane=lane) as fake:
            fake.create("orders", queues, ordered=True)
            fake.create("metrics")
            yield fake

    return running
