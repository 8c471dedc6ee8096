"""JSON bodies about groups: heartbeats, locks, members. Also the base of all bodies.

Every attribute has a default and unknown ones are ignored, because each RocketMQ version adds some and other clients
leave some out. Routes and the tables of administration are in `route_bodies` and `stats_bodies`.
"""

from functools import cache
from typing import Any, ClassVar, Self, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from lanemq.model.log_marks import SeenLog
from lanemq.model.queue import MessageQueue
from lanemq.wire.loose_json import OF_CLIENT, OF_SERVER, BodyError, Limits, loads_loose
from lanemq.wire.prepared import prepare_structs

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_last_decoded: list[Any] = [None, None]
"""The bytes and the body of the last request. Bytes are compared by identity: it is the same request."""


def encode_json(value: object) -> bytes:
    """Encodes structs and plain values as JSON; `BodyError` for text that is not valid Unicode."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise BodyError(f"body holds text that is not Unicode: {error}") from None


def decode_json(kind: type[T], data: bytes, limits: Limits = OF_CLIENT) -> T:
    """Decodes a `kind` from strict JSON or from what fastjson writes; raises `BodyError`."""
    if b'"$ref"' not in data:
        try:
            return msgspec.json.decode(data, type=kind, strict=False)
        except (ValueError, RecursionError):
            pass
    return convert(kind, loads_loose(data, limits))


def convert(kind: type[T], value: object) -> T:
    """Converts the result of `loads_loose` to a `kind`; null counts as absent, as in Java."""
    try:
        return msgspec.convert(_without_nulls(value), kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"body is not a {kind.__name__}: {error}") from None


class Body(Struct, kw_only=True, rename="camel"):
    """Base of all bodies. Attributes named in `left_out` are written only if they have a value."""

    left_out: ClassVar[tuple[str, ...]] = ()

    def encode(self) -> bytes:
        if not self.left_out:
            return encode_json(self)
        # Not `to_builtins`, which would convert every value of every list.
        values = ((name, getattr(self, field)) for name, field in _names_and_fields(type(self)))
        left_out = self.left_out
        return encode_json(
            {name: value for name, value in values if (value or name not in left_out) and value is not UNSET}
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decodes a body; `BodyError` if `data` is empty or is not such a body."""
        return decode_json(cls, data)

    @classmethod
    def of_request(cls, data: bytes) -> Self:
        """Decodes the body of a request, within the limits of a server.

        The guard and the handler of a request ask for the same body: the second gets what the first decoded.
        """
        last = _last_decoded
        if last[0] is data and type(last[1]) is cls:
            return last[1]
        body = decode_json(cls, data, OF_SERVER)
        last[:] = (data, body)
        return body


@cache
def _names_and_fields(kind: type[Body]) -> tuple[tuple[str, str], ...]:
    """The names of a body's members on the wire, and of its attributes."""
    return tuple(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


class QueueBody(Struct, frozen=True, kw_only=True, rename="camel"):
    """A message queue. Locks compare all three attributes exactly."""

    broker_name: str = ""
    queue_id: int = 0
    topic: str = ""

    @classmethod
    def of(cls, queue: MessageQueue) -> Self:
        return cls(topic=queue.topic, broker_name=queue.broker, queue_id=queue.queue_id)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class SubscriptionData(Body):
    """What a group wants of a topic. `code_set` holds the Java hashes of `tags_set`.

    `lane_ordered` and `lane_narrower` are LaneMQ's; the latter is in answers: how many members have fewer tags than
    others.
    """

    class_filter_mode: bool = False
    code_set: list[int] = field(default_factory=list)
    expression_type: str = "TAG"
    sub_string: str = "*"
    sub_version: int = 0
    tags_set: list[str] = field(default_factory=list)
    topic: str = ""
    lane_ordered: bool | UnsetType = UNSET
    lane_narrower: int | UnsetType = UNSET


CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""RocketMQ's enums, in the order by which C++ clients number them."""


def enum_text(names: tuple[str, ...], value: str | int) -> str:
    """The text of an enum that may be written as its number; `BodyError` for a number that means nothing."""
    if isinstance(value, str):
        return value
    if not 0 <= value < len(names):
        raise BodyError(f"{value} is not one of {', '.join(names)} (0 to {len(names) - 1})")
    return names[value]


class ConsumerData(Body):
    """One group of a client. The enum texts are RocketMQ's; "PUSH" and "PULL" are not among them.

    C++ clients, and Python clients that wrap them, write the enums as numbers: read them with `enum_text`.
    """

    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str | int = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str | int = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body):
    group_name: str = ""


class HeartbeatData(Body):
    """HEART_BEAT (34): the client id behind a connection, with its producer and consumer groups."""

    client_id: str = field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    producer_data_set: list[ProducerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class LockRequest(Body):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[QueueBody] = field(default_factory=list)
    only_this_broker: bool = False


class LaneLease(Body):
    """A granted lease: its remaining time, its epoch, and where the group stands in the queue."""

    broker_name: str = ""
    epoch: int = 0
    finished: str = ""
    """What is finished above the offset, as `core/finished_ranges` writes it."""
    lease_millis: int = 0
    offset: int = -1
    moved: bool = False
    """A reset to the offset waits for the owner; only for those who ask for it (`laneResets`)."""
    parked: int = 0
    """Grows when an operator changes the queue's parked lanes; 0: it never had any (see `lane_bodies`)."""
    queue_id: int = 0
    topic: str = ""

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class LaneProgress(Body):
    """What is finished above the offset: with UPDATE_CONSUMER_OFFSET (15), and in the answer to QUERY_CONSUMER_OFFSET
    (14) if it asks for them. Neither has a body in RocketMQ."""

    left_out = ("lane_seen",)
    lane_finished: str = ""
    lane_seen: SeenLog | None = None
    """To a coordinator: what the member has seen of the queue's log."""


class LaneRefusal(Body):
    """A refused lock: the holder of the queue, and how long it may still hold it."""

    broker_name: str = ""
    holder: str = ""
    queue_id: int = 0
    remaining_millis: int = 0
    topic: str = ""

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class LockResponse(Body):
    """Answers 41. A partial grant is normal; stock clients read only the first attribute."""

    left_out = ("laneLeases", "laneRefused")

    lock_ok_mq_set: list[QueueBody] = field(name="lockOKMQSet", default_factory=list)
    lane_leases: list[LaneLease] = field(default_factory=list)
    lane_refused: list[LaneRefusal] = field(default_factory=list)


class ConsumerIdList(Body):
    """Answers 38. A client with two connections may be listed twice by stock brokers."""

    consumer_id_list: list[str] = field(default_factory=list)


class ConsumeDirectlyResult(Body):
    """Answers 309; `consume_result` is one of CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, ..."""

    left_out = ("remark",)

    auto_commit: bool = True
    consume_result: str = "CR_SUCCESS"
    order: bool = False
    remark: str = ""
    spent_time_mills: int = 0


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


prepare_structs(__name__)
