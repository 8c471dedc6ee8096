"""A gRPC client of our own, which does what a test says and nothing by itself."""

import hmac
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

import grpc

from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.codec import decode, encode

T = TypeVar("T")
_IDS = itertools.count(1)


@dataclass
class Got:
    """A message that was received."""

    body: str
    handle: str
    attempt: int
    key: str | None
    topic: str
    properties: dict[str, str]
    message_id: str


@dataclass
class FakeClient:
    """One client with a connection of its own."""

    address: str
    group: str = ""
    topic: str = "orders"
    language: str = "PYTHON"
    user: str = ""
    secret: str = ""
    id: str = field(default_factory=lambda: f"client-{next(_IDS)}")

    def __post_init__(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(self.address, options=options)

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    @property
    def metadata(self) -> list[tuple[str, str]]:
        found = [("x-mq-client-id", self.id), ("x-mq-language", self.language), ("x-mq-client-version", "5.0.0")]
        if self.user:
            time = "20261118T120000Z"
            proof = hmac.new(self.secret.encode(), time.encode(), "sha1").hexdigest()
            text = f"MQv2-HMAC-SHA1 Credential={self.user}, SignedHeaders=x-mq-date-time, Signature={proof}"
            found += [("x-mq-date-time", time), ("authorization", text)]
        return found

    def call(self, method: str, request: object, answer: type[T], seconds: float = 5) -> T:
        unary = self.channel.unary_unary(f"/{m.SERVICE}/{method}")
        return decode(answer, unary(encode(request), timeout=seconds, metadata=self.metadata))

    def receiving(self, *, batch: int = 32, seconds: float = 3.0, poll_ms: int = 1000, **more: Any) -> Any:
        """The open call of a receive: parts of its answer, still encoded."""
        request = m.ReceiveMessageRequest(
            m.Resource(name=self.group), m.QueueAt(m.Resource(name=self.topic)), m.FilterExpression(1, "*"), batch,
            auto_renew="invisible_duration" not in more, long_polling_timeout=m.Duration.of_ms(poll_ms), **more,
        )  # fmt: skip
        stream = self.channel.unary_stream(f"/{m.SERVICE}/ReceiveMessage")
        return stream(encode(request), timeout=seconds, metadata=self.metadata)

    def receive(self, **options: Any) -> list[Got]:
        """The messages of one receive; empty if there are none."""
        return [each for each in self.parts(**options) if isinstance(each, Got)]

    def parts(self, **options: Any) -> list[Got | int]:
        """The code of a receive, and its messages."""
        return list(_parts(self.receiving(**options)))

    def status(self, **options: Any) -> int:
        first = self.parts(**options)[0]
        assert isinstance(first, int)
        return first

    def acknowledge(self, *got: Got) -> int:
        entries = [m.AckMessageEntry(each.message_id, each.handle) for each in got]
        request = m.AckMessageRequest(m.Resource(name=self.group), m.Resource(name=got[0].topic), entries)
        return _code(self.call("AckMessage", request, m.AckMessageResponse))

    def forward(self, got: Got) -> int:
        """What a FIFO push consumer sends when its handler has failed."""
        request = m.ForwardRequest(m.Resource(name=self.group), m.Resource(name=got.topic), got.handle, got.message_id)
        return _code(self.call("ForwardMessageToDeadLetterQueue", request, m.StatusResponse))

    def change(self, got: Got, milliseconds: int) -> tuple[int, str]:
        request = m.ChangeInvisibleRequest(
            m.Resource(name=self.group), m.Resource(name=got.topic), got.handle, m.Duration.of_ms(milliseconds),
            got.message_id,
        )  # fmt: skip
        answer = self.call("ChangeInvisibleDuration", request, m.ChangeInvisibleResponse)
        return _code(answer), answer.receipt_handle

    def send(self, body: str, key: str | None = "k", message_id: str = "", **more: Any) -> m.SendMessageResponse:
        system = m.SystemProperties(message_id=message_id or f"ID{next(_IDS):08}", message_group=key, **more)
        message = m.WireMessage(m.Resource(name=self.topic), {"colour": "red"}, system, body.encode())
        return self.call("SendMessage", m.SendMessageRequest([message]), m.SendMessageResponse)

    def terminate(self) -> int:
        request = m.TerminationRequest(m.Resource(name=self.group))
        return _code(self.call("NotifyClientTermination", request, m.StatusResponse))

    def telemetry(self, settings: m.Settings) -> "Telemetry":
        return Telemetry(self, settings)


class Telemetry:
    """An open telemetry call."""

    def __init__(self, client: FakeClient, settings: m.Settings) -> None:
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        self._out.put(encode(m.TelemetryCommand(settings=settings)))
        stream = client.channel.stream_stream(f"/{m.SERVICE}/Telemetry")
        self.call = stream(iter(self._out.get, None), metadata=client.metadata)

    def answer(self) -> m.TelemetryCommand:
        return decode(m.TelemetryCommand, next(self.call))

    def close(self) -> None:
        self._out.put(None)


def _parts(stream: Any) -> Iterator[Got | int]:
    for part in stream:
        answer = decode(m.ReceiveMessageResponse, part)
        if answer.status is not None:
            yield answer.status.code
        if answer.message is not None:
            system = answer.message.system
            assert system is not None
            assert answer.message.topic is not None
            yield Got(
                answer.message.body.decode(), system.receipt_handle or "", system.delivery_attempt or 0,
                system.message_group, answer.message.topic.name, dict(answer.message.user_properties),
                system.message_id,
            )  # fmt: skip


def _code(answer: Any) -> int:
    code: int = answer.status.code
    return code
