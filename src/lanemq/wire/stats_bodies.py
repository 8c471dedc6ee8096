"""JSON bodies with one entry per queue: offsets, stats, what a consumer is doing.

Java writes these tables with the queue, an object, as key: `{{"queueId":0,...}:{...}}`. This module writes that form
too, because Go takes valid JSON in some of them for another format. It reads that form and the object's text in
quotes.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self, TypeVar

from msgspec import Raw, field

from lanemq.model.queue import MessageQueue
from lanemq.wire.bodies import Body, QueueBody, SubscriptionData, convert, decode_json, encode_json
from lanemq.wire.lane_fields import LANE_CREATED
from lanemq.wire.loose_json import BodyError, loads_loose
from lanemq.wire.prepared import prepare_structs

T = TypeVar("T")


def encode_queue_entry(queue: MessageQueue, value: object) -> bytes:
    """Encodes one entry of a table with queues as keys."""
    return encode_json(QueueBody.of(queue)) + b":" + encode_json(value)


def encode_queue_table(table: Mapping[MessageQueue, object]) -> Raw:
    """Encodes a table with queues as keys, to be placed inside another body."""
    return join_queue_entries([encode_queue_entry(queue, value) for queue, value in table.items()])


def join_queue_entries(entries: Sequence[bytes]) -> Raw:
    return Raw(b"{%b}" % b",".join(entries))


def decode_queue_table(kind: type[T], table: object) -> dict[MessageQueue, T]:
    """Decodes such a table from the result of `loads_loose`."""
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise BodyError(f"a table by queue is expected, not {type(table).__name__}")
    return {decode_json(QueueBody, str(key).encode()).queue: convert(kind, value) for key, value in table.items()}


class QueueTableBody(Body):
    """A body whose first attribute is such a table; `table_name` is its name on the wire."""

    value_type: ClassVar[type[object]] = object
    """The type of the values."""

    @classmethod
    def table_name(cls) -> str:
        return cls.__struct_encode_fields__[0]

    def encode(self) -> bytes:
        return self._encode(encode_queue_table(getattr(self, self.__struct_fields__[0])))

    def encode_with(self, entries: Sequence[bytes]) -> bytes:
        """Encodes the body with these entries of `encode_queue_entry` instead of its table."""
        return self._encode(join_queue_entries(entries))

    def _encode(self, table: Raw) -> bytes:
        members = {
            wire_name: getattr(self, attribute)
            for attribute, wire_name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
            if wire_name not in self.left_out or getattr(self, attribute)
        }
        return encode_json({**members, self.table_name(): table})

    @classmethod
    def decode(cls, data: bytes) -> Self:
        members = loads_loose(data)
        if not isinstance(members, dict):
            raise BodyError(f"body is not a {cls.__name__}: it is not a JSON object")
        table = members.pop(cls.table_name(), None)
        body = convert(cls, members)
        setattr(body, cls.__struct_fields__[0], decode_queue_table(cls.value_type, table))
        return body


class TopicOffset(Body):
    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStatsTable(QueueTableBody):
    """Answers 202. `lane_created` is LaneMQ's."""

    left_out = (LANE_CREATED,)

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0
    lane_created: int = 0

    value_type = TopicOffset


class ConsumeOffset(Body):
    """A group's position in a queue; the difference of the first two is its lag."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0
    lane_finished: int = 0
    """LaneMQ's own: messages above the offset that are finished already."""


class ConsumeStats(QueueTableBody):
    """Answers 208."""

    offset_table: dict[MessageQueue, ConsumeOffset] = field(default_factory=dict)
    consume_tps: float = 0.0

    value_type = ConsumeOffset


class ResetOffsetBody(QueueTableBody):
    """Answers 222 and comes with 220."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    value_type = int


class ConsumerStatusBody(QueueTableBody):
    """Answers 221."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)

    value_type = int


class ProcessQueueInfo(Body):
    """One queue as its consumer reports it. `droped` is RocketMQ's spelling."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: int = 0
    droped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    try_unlock_times: int = 0


class ConsumeStatus(Body):
    """Rates of one topic in one consumer."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)


class ConsumerRunningInfo(QueueTableBody):
    """Answers 307."""

    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    jstack: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)

    value_type = ProcessQueueInfo


class ClientConnection(Body):
    client_addr: str = ""
    client_id: str = ""
    language: str = "PYTHON"
    version: int = 0


class ConsumerConnection(Body):
    """Answers 203."""

    connection_set: list[ClientConnection] = field(default_factory=list)
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)


class ProducerConnection(Body):
    """Answers 204."""

    connection_set: list[ClientConnection] = field(default_factory=list)


class ProducerInfo(Body):
    """A connection of a producer. `remoteIP` is RocketMQ's spelling."""

    client_id: str = ""
    language: str = "JAVA"
    last_update_timestamp: int = 0
    remote_ip: str = field(name="remoteIP", default="")
    version: int = 0


class ProducerTableInfo(Body):
    """Answers 328: producer group to its connections."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class BrokerStatsItem(Body):
    """A figure in one window; `avgpt` is the mean amount of one request."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStatsData(Body):
    """Answers 315."""

    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)


prepare_structs(__name__)
