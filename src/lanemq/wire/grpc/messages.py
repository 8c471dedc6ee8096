"""RocketMQ 5's gRPC messages, as far as LaneMQ reads or writes them: names, numbers and types of their fields.

These are facts of the protocol. Fields that nothing here uses are left out; the codec skips them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from lanemq.wire.grpc.codec import DATA, FLAG, INT, INTS, MANY, MAPPING, ONE, REAL, TEXT, TEXTS

SERVICE = "apache.rocketmq.v2.MessagingService"


class QueueRights(IntEnum):
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class FilterType(IntEnum):
    UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class AddressScheme(IntEnum):
    IPV4 = 1
    IPV6 = 2
    DOMAIN_NAME = 3


class MessageType(IntEnum):
    UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class DigestType(IntEnum):
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class ClientType(IntEnum):
    UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3


class Encoding(IntEnum):
    UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class Language(IntEnum):
    UNSPECIFIED = 0
    JAVA = 1
    CPP = 2
    DOT_NET = 3
    GOLANG = 4
    RUST = 5
    PYTHON = 6
    PHP = 7
    NODE_JS = 8
    RUBY = 9
    OBJECTIVE_C = 10
    DART = 11
    KOTLIN = 12


class Code(IntEnum):
    """Status codes that LaneMQ answers."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    CLIENT_ID_REQUIRED = 40017
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    MESSAGE_BODY_TOO_LARGE = 41301
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    UNSUPPORTED = 50500


# values


@dataclass(slots=True)
class Instant:
    """A point in time, since 1970."""

    seconds: Annotated[int, INT(1)] = 0
    nanos: Annotated[int, INT(2)] = 0

    @classmethod
    def of_ms(cls, milliseconds: int) -> "Instant":
        return cls(milliseconds // 1000, milliseconds % 1000 * 1_000_000)


@dataclass(slots=True)
class Duration:
    """A length of time."""

    seconds: Annotated[int, INT(1)] = 0
    nanos: Annotated[int, INT(2)] = 0

    @classmethod
    def of_ms(cls, milliseconds: int) -> "Duration":
        return cls(milliseconds // 1000, milliseconds % 1000 * 1_000_000)

    @property
    def ms(self) -> int:
        return self.seconds * 1000 + self.nanos // 1_000_000


@dataclass(slots=True)
class Status:
    code: Annotated[int, INT(1)] = 0
    message: Annotated[str, TEXT(2)] = ""


@dataclass(slots=True)
class Resource:
    """A topic or a group."""

    namespace: Annotated[str, TEXT(1)] = ""
    name: Annotated[str, TEXT(2)] = ""


@dataclass(slots=True)
class FilterExpression:
    type: Annotated[int, INT(1)] = 0
    expression: Annotated[str, TEXT(2)] = ""


@dataclass(slots=True)
class HostPort:
    host: Annotated[str, TEXT(1)] = ""
    port: Annotated[int, INT(2)] = 0


@dataclass(slots=True)
class Endpoints:
    scheme: Annotated[int, INT(1)] = 0
    addresses: Annotated[Sequence[HostPort], MANY(2, HostPort)] = ()


@dataclass(slots=True)
class BrokerAt:
    name: Annotated[str, TEXT(1)] = ""
    id: Annotated[int, INT(2)] = 0
    endpoints: Annotated[Endpoints | None, ONE(3, Endpoints)] = None


@dataclass(slots=True)
class QueueAt:
    """A queue of a topic, or one that stands for several."""

    topic: Annotated[Resource | None, ONE(1, Resource)] = None
    id: Annotated[int, INT(2)] = 0
    permission: Annotated[int, INT(3)] = 0
    broker: Annotated[BrokerAt | None, ONE(4, BrokerAt)] = None
    accepts: Annotated[Sequence[int], INTS(5)] = ()


@dataclass(slots=True)
class Digest:
    type: Annotated[int, INT(1)] = 0
    checksum: Annotated[str, TEXT(2)] = ""


@dataclass(slots=True)
class SystemProperties:
    tag: Annotated[str | None, TEXT(1)] = None
    keys: Annotated[Sequence[str], TEXTS(2)] = ()
    message_id: Annotated[str, TEXT(3)] = ""
    body_digest: Annotated[Digest | None, ONE(4, Digest)] = None
    body_encoding: Annotated[int, INT(5)] = 0
    message_type: Annotated[int, INT(6)] = 0
    born_timestamp: Annotated[Instant | None, ONE(7, Instant)] = None
    born_host: Annotated[str, TEXT(8)] = ""
    store_timestamp: Annotated[Instant | None, ONE(9, Instant)] = None
    store_host: Annotated[str, TEXT(10)] = ""
    delivery_timestamp: Annotated[Instant | None, ONE(11, Instant)] = None
    receipt_handle: Annotated[str | None, TEXT(12)] = None
    queue_id: Annotated[int, INT(13)] = 0
    queue_offset: Annotated[int | None, INT(14)] = None
    invisible_duration: Annotated[Duration | None, ONE(15, Duration)] = None
    delivery_attempt: Annotated[int | None, INT(16)] = None
    message_group: Annotated[str | None, TEXT(17)] = None
    trace_context: Annotated[str | None, TEXT(18)] = None


@dataclass(slots=True)
class WireMessage:
    """A message as clients send and get it."""

    topic: Annotated[Resource | None, ONE(1, Resource)] = None
    user_properties: Annotated[Mapping[str, str], MAPPING(2)] = field(default_factory=dict)
    system: Annotated[SystemProperties | None, ONE(3, SystemProperties)] = None
    body: Annotated[bytes, DATA(4)] = b""


# settings


@dataclass(slots=True)
class ExponentialBackoff:
    initial: Annotated[Duration | None, ONE(1, Duration)] = None
    max: Annotated[Duration | None, ONE(2, Duration)] = None
    multiplier: Annotated[float, REAL(3)] = 0.0


@dataclass(slots=True)
class CustomizedBackoff:
    next: Annotated[Sequence[Duration], MANY(1, Duration)] = ()


@dataclass(slots=True)
class RetryPolicy:
    max_attempts: Annotated[int, INT(1)] = 0
    exponential: Annotated[ExponentialBackoff | None, ONE(2, ExponentialBackoff)] = None
    customized: Annotated[CustomizedBackoff | None, ONE(3, CustomizedBackoff)] = None


@dataclass(slots=True)
class SubscriptionEntry:
    topic: Annotated[Resource | None, ONE(1, Resource)] = None
    expression: Annotated[FilterExpression | None, ONE(2, FilterExpression)] = None


@dataclass(slots=True)
class Publishing:
    topics: Annotated[Sequence[Resource], MANY(1, Resource)] = ()
    max_body_size: Annotated[int, INT(2)] = 0
    validate_message_type: Annotated[bool, FLAG(3)] = False


@dataclass(slots=True)
class Subscribing:
    group: Annotated[Resource | None, ONE(1, Resource)] = None
    subscriptions: Annotated[Sequence[SubscriptionEntry], MANY(2, SubscriptionEntry)] = ()
    fifo: Annotated[bool | None, FLAG(3)] = None
    receive_batch_size: Annotated[int | None, INT(4)] = None
    long_polling_timeout: Annotated[Duration | None, ONE(5, Duration)] = None


@dataclass(slots=True)
class UserAgent:
    language: Annotated[int, INT(1)] = 0
    version: Annotated[str, TEXT(2)] = ""
    platform: Annotated[str, TEXT(3)] = ""
    hostname: Annotated[str, TEXT(4)] = ""


@dataclass(slots=True)
class MetricSettings:
    on: Annotated[bool | None, FLAG(1)] = None


@dataclass(slots=True)
class Settings:
    client_type: Annotated[int | None, INT(1)] = None
    access_point: Annotated[Endpoints | None, ONE(2, Endpoints)] = None
    backoff_policy: Annotated[RetryPolicy | None, ONE(3, RetryPolicy)] = None
    request_timeout: Annotated[Duration | None, ONE(4, Duration)] = None
    publishing: Annotated[Publishing | None, ONE(5, Publishing)] = None
    subscription: Annotated[Subscribing | None, ONE(6, Subscribing)] = None
    user_agent: Annotated[UserAgent | None, ONE(7, UserAgent)] = None
    metric: Annotated[MetricSettings | None, ONE(8, MetricSettings)] = None


@dataclass(slots=True)
class Nonce:
    nonce: Annotated[str, TEXT(1)] = ""


@dataclass(slots=True)
class TelemetryCommand:
    status: Annotated[Status | None, ONE(1, Status)] = None
    settings: Annotated[Settings | None, ONE(2, Settings)] = None
    reconnect: Annotated[Nonce | None, ONE(8, Nonce)] = None


# requests and their answers


@dataclass(slots=True)
class QueryRouteRequest:
    topic: Annotated[Resource | None, ONE(1, Resource)] = None
    endpoints: Annotated[Endpoints | None, ONE(2, Endpoints)] = None


@dataclass(slots=True)
class QueryRouteResponse:
    status: Annotated[Status | None, ONE(1, Status)] = None
    queues: Annotated[Sequence[QueueAt], MANY(2, QueueAt)] = ()


@dataclass(slots=True)
class SendMessageRequest:
    messages: Annotated[Sequence[WireMessage], MANY(1, WireMessage)] = ()


@dataclass(slots=True)
class SendResultEntry:
    status: Annotated[Status | None, ONE(1, Status)] = None
    message_id: Annotated[str, TEXT(2)] = ""
    transaction_id: Annotated[str, TEXT(3)] = ""
    offset: Annotated[int, INT(4)] = 0


@dataclass(slots=True)
class SendMessageResponse:
    status: Annotated[Status | None, ONE(1, Status)] = None
    entries: Annotated[Sequence[SendResultEntry], MANY(2, SendResultEntry)] = ()


@dataclass(slots=True)
class QueryAssignmentRequest:
    topic: Annotated[Resource | None, ONE(1, Resource)] = None
    group: Annotated[Resource | None, ONE(2, Resource)] = None
    endpoints: Annotated[Endpoints | None, ONE(3, Endpoints)] = None


@dataclass(slots=True)
class AssignedAt:
    queue: Annotated[QueueAt | None, ONE(1, QueueAt)] = None


@dataclass(slots=True)
class QueryAssignmentResponse:
    status: Annotated[Status | None, ONE(1, Status)] = None
    assignments: Annotated[Sequence[AssignedAt], MANY(2, AssignedAt)] = ()


@dataclass(slots=True)
class ReceiveMessageRequest:
    group: Annotated[Resource | None, ONE(1, Resource)] = None
    queue: Annotated[QueueAt | None, ONE(2, QueueAt)] = None
    filter: Annotated[FilterExpression | None, ONE(3, FilterExpression)] = None
    batch_size: Annotated[int, INT(4)] = 0
    invisible_duration: Annotated[Duration | None, ONE(5, Duration)] = None
    auto_renew: Annotated[bool, FLAG(6)] = False
    long_polling_timeout: Annotated[Duration | None, ONE(7, Duration)] = None
    attempt_id: Annotated[str | None, TEXT(8)] = None


@dataclass(slots=True)
class ReceiveMessageResponse:
    """One part of an answer: status, message, or the time of delivery."""

    status: Annotated[Status | None, ONE(1, Status)] = None
    message: Annotated[WireMessage | None, ONE(2, WireMessage)] = None
    delivery_timestamp: Annotated[Instant | None, ONE(3, Instant)] = None


@dataclass(slots=True)
class AckMessageEntry:
    message_id: Annotated[str, TEXT(1)] = ""
    receipt_handle: Annotated[str, TEXT(2)] = ""


@dataclass(slots=True)
class AckMessageRequest:
    group: Annotated[Resource | None, ONE(1, Resource)] = None
    topic: Annotated[Resource | None, ONE(2, Resource)] = None
    entries: Annotated[Sequence[AckMessageEntry], MANY(3, AckMessageEntry)] = ()


@dataclass(slots=True)
class AckMessageResultEntry:
    message_id: Annotated[str, TEXT(1)] = ""
    receipt_handle: Annotated[str, TEXT(2)] = ""
    status: Annotated[Status | None, ONE(3, Status)] = None


@dataclass(slots=True)
class AckMessageResponse:
    status: Annotated[Status | None, ONE(1, Status)] = None
    entries: Annotated[Sequence[AckMessageResultEntry], MANY(2, AckMessageResultEntry)] = ()


@dataclass(slots=True)
class ForwardRequest:
    """ForwardMessageToDeadLetterQueue."""

    group: Annotated[Resource | None, ONE(1, Resource)] = None
    topic: Annotated[Resource | None, ONE(2, Resource)] = None
    receipt_handle: Annotated[str, TEXT(3)] = ""
    message_id: Annotated[str, TEXT(4)] = ""
    delivery_attempt: Annotated[int, INT(5)] = 0
    max_delivery_attempts: Annotated[int, INT(6)] = 0


@dataclass(slots=True)
class ChangeInvisibleRequest:
    """ChangeInvisibleDuration."""

    group: Annotated[Resource | None, ONE(1, Resource)] = None
    topic: Annotated[Resource | None, ONE(2, Resource)] = None
    receipt_handle: Annotated[str, TEXT(3)] = ""
    invisible_duration: Annotated[Duration | None, ONE(4, Duration)] = None
    message_id: Annotated[str, TEXT(5)] = ""


@dataclass(slots=True)
class ChangeInvisibleResponse:
    status: Annotated[Status | None, ONE(1, Status)] = None
    receipt_handle: Annotated[str, TEXT(2)] = ""


@dataclass(slots=True)
class HeartbeatRequest:
    group: Annotated[Resource | None, ONE(1, Resource)] = None
    client_type: Annotated[int, INT(2)] = 0


@dataclass(slots=True)
class TerminationRequest:
    """NotifyClientTermination."""

    group: Annotated[Resource | None, ONE(1, Resource)] = None


@dataclass(slots=True)
class StatusResponse:
    """The answer of the calls that have nothing else to say."""

    status: Annotated[Status | None, ONE(1, Status)] = None
