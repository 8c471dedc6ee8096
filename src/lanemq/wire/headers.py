"""Ext fields of the requests that carry messages and offsets, as typed values.

One class per request or response; `from_ext` checks, `to_ext` writes. A handler never sees a missing field, a number
out of its Java range or text where a number belongs: it gets a complete header, or `HeaderError` names the field.
Unknown fields are ignored, because newer clients add some to every request. Attribute names are the wire's names in
Python's spelling (`queueId` is `queue_id`). The headers of administration requests are in `admin_headers`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct, field

from lanemq.model.errors import RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.wire import lane_fields
from lanemq.wire.prepared import prepare_structs

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

_FIELD = re.compile(r"(?:at `\$\.|required field `)([^`]*)`")


class HeaderError(RemoteProtocolError):
    """A field of a request or response is missing or invalid; the connection itself can continue."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"header field {field}: {problem}")


class Header(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all headers. Fields that are None are not sent."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header in a command's ext fields, or `HeaderError`."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except ValueError as error:
            raise _header_error(error) from None

    def to_ext(self) -> dict[str, str]:
        """The ext fields, text only: Go clients decode nothing else."""
        ext: dict[str, str] = {}
        for name, wire_name in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            value = getattr(self, name)
            if value is not None:
                ext[wire_name] = value if isinstance(value, str) else _text(value)
        return ext


class SendHeader(Header, frozen=True, kw_only=True):
    """SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and the reply forms.

    V2 and batch use one letter per field to save bytes; `from_ext_v1` and `from_ext_v2` give the same value.
    `batch`, not the code, says that the body holds several messages.
    """

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Int32 = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)
    lane_client: str | None = field(name=lane_fields.LANE_CLIENT, default=None)

    @classmethod
    def from_ext_v1(cls, ext: Mapping[str, str]) -> Self:
        """The long field names of code 10 and 324."""
        short = {_SEND_V1[name]: value for name, value in ext.items() if name in _SEND_V1}
        try:
            return msgspec.convert(short, cls, strict=False)
        except ValueError as error:
            problem = _header_error(error)
            raise HeaderError(_SEND_LONG.get(problem.field, problem.field), problem.problem) from None

    @classmethod
    def from_ext_v2(cls, ext: Mapping[str, str]) -> Self:
        """The letters of codes 310, 320 and 325."""
        return cls.from_ext(ext)

    def to_ext_v2(self) -> dict[str, str]:
        return self.to_ext()


_SEND_V1 = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
    lane_fields.LANE_CLIENT: lane_fields.LANE_CLIENT,
}
_SEND_LONG = {short: long for long, short in _SEND_V1.items()}


class PushReplyHeader(Header, frozen=True, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply on its way to the client that asked. Hosts are `ip:port`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str
    reconsume_times: Int32
    unit_mode: bool
    born_host: str
    store_host: str
    store_timestamp: Int64


class PullHeader(Header, frozen=True, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64 = -1
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    lane_client: str | None = None
    lane_epoch: Int64 | None = None
    lane_max_bytes: Int32 | None = None
    lane_created: Int64 | None = None
    lane_parts: bool | None = None

    @staticmethod
    def at(offset: int, fields: dict[str, str]) -> dict[str, str]:
        """The ext fields of the same pull at another offset; writing all of them again takes ten times as long."""
        return {**fields, "queueOffset": str(offset)}


class PullResponse(Header, frozen=True, kw_only=True):
    """Sent with every answer to a pull, whatever the response code."""

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    lane_more: bool | None = None

    @staticmethod
    def ext_of(next_begin_offset: int, min_offset: int, max_offset: int, *, more: bool = False) -> dict[str, str]:
        """The fields of an answer, without making a header: a broker writes one for each message that comes alone."""
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_begin_offset),
            "minOffset": str(min_offset),
            "maxOffset": str(max_offset),
        }
        if more:
            ext["laneMore"] = "true"
        return ext


class QueryOffsetHeader(Header, frozen=True, kw_only=True):
    """QUERY_CONSUMER_OFFSET (14). With `lane_finished`, a LaneMQ broker adds the finished ranges as the body."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    broker_name: str | None = field(name="bname", default=None)
    lane_finished: bool | None = None

    @classmethod
    def of(cls, group: str, queue: MessageQueue, *, finished: bool | None = None) -> Self:
        topic, broker, queue_id = queue
        return cls(
            consumer_group=group, topic=topic, queue_id=queue_id, broker_name=broker, lane_finished=finished or None
        )


class UpdateOffsetHeader(Header, frozen=True, kw_only=True):
    """UPDATE_CONSUMER_OFFSET (15); Node clients send -1 for "none". LaneMQ's may bring finished ranges in the body."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    broker_name: str | None = field(name="bname", default=None)
    lane_client: str | None = None
    lane_epoch: Int64 | None = None
    lane_report: bool | None = None

    @classmethod
    def of(cls, group: str, queue: MessageQueue, offset: int, client_id: str = "", epoch: int = 0) -> Self:
        """A commit. Epoch 0: it names no lease, because the sender has none, or the broker grants no epochs."""
        return cls(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker,
            commit_offset=offset,
            lane_client=client_id if epoch else None,
            lane_epoch=epoch or None,
        )


class SearchOffsetHeader(Header, frozen=True, kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class QueueHeader(Header, frozen=True, kw_only=True):
    """One queue: GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class OffsetResponse(Header, frozen=True, kw_only=True):
    """Answers 14, 29, 30 and 31."""

    offset: Int64


class UnregisterHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT (35). The capital D is RocketMQ's."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class SendBackHeader(Header, frozen=True, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36). `offset` is a log position; a negative delay level means dead letter."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = field(name="bname", default=None)
    lane_pass_on: bool | None = None


class ConsumerListHeader(Header, frozen=True, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40), the connection list (203).

    With `lane_topic`, a LaneMQ broker answers with the members that subscribe to this topic.
    """

    consumer_group: str
    lane_topic: str | None = None


class LockHeader(Header, frozen=True, kw_only=True):
    """LOCK_BATCH_MQ (41). RocketMQ's own fields are in the body; these are LaneMQ's additions."""

    lane_lease_millis: Int64 | None = None
    lane_finished: bool | None = None
    lane_keep_alive_millis: Int64 | None = None
    lane_keep_alive: Int64 | None = None
    lane_resets: bool | None = None
    lane_term: Int64 | None = None


class LockAnswerHeader(Header, frozen=True, kw_only=True):
    """LaneMQ's additions to the answer of LOCK_BATCH_MQ (41)."""

    lane_keep_alive: Int64 | None = None
    lane_not_member: bool | None = None
    lane_term: Int64 | None = None


class HeartbeatHeader(Header, frozen=True, kw_only=True):
    """LaneMQ's addition to HEART_BEAT (34)."""

    lane_expiry_millis: Int64 | None = None
    lane_term: Int64 | None = None
    lane_highest_epoch: Int64 | None = None


class NotLeaderHeader(Header, frozen=True, kw_only=True):
    """The answer of a coordinator that does not lead."""

    lane_leader: str | None = None
    lane_term: Int64 | None = None


class ParkHeader(Header, frozen=True, kw_only=True):
    """LANE_PARK (4202) and LANE_PARK_NEXT (4203), sent by the owner of a queue under its lease."""

    consumer_group: str
    topic: str
    queue_id: Int32
    broker_name: str = field(name="bname")
    lane_client: str
    lane_epoch: Int64


class ParkNextResponse(Header, frozen=True, kw_only=True):
    """Answers LANE_PARK_NEXT; the records are in the body."""

    lane_parked: str


def _text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


def _header_error(error: ValueError) -> HeaderError:
    """The `HeaderError` for a conversion that msgspec refused, with the field that msgspec names."""
    text = str(error)
    match = _FIELD.search(text)
    name = match.group(1) if match else "?"
    problem = "is missing" if "missing" in text else text.partition(" - at")[0]
    return HeaderError(name, problem)


prepare_structs(__name__)
