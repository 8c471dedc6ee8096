"""What a request needs its sender to be allowed.

The rule guarded here: a request that is not listed needs an administrator, so a new kind is closed until somebody has
thought about it. Fields are read by the classes that the handlers use: two readings of one request would sooner or
later differ, and the difference would be a way in.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lanemq.broker.users import Right, User
from lanemq.wire.admin_headers import QueryMessageHeader, TopicHeader, ViewMessageHeader
from lanemq.wire.bodies import HeartbeatData, LockRequest
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import SendBackHeader, SendHeader, UnregisterHeader
from lanemq.wire.parked_bodies import LaneBody

TopicAt = Callable[[int], str]
"""The topic of the message at a log position."""


class Need(NamedTuple):
    """One thing that must be allowed. Without a name: everything of the kind, so only an administrator may."""

    kind: str
    name: str
    right: Right = Right.SUB

    def given_to(self, user: User) -> bool:
        if user.admin or not self.name:
            return user.admin
        if self.kind == "group":
            return user.may_use_group(self.name)
        return user.may_use_topic(self.name, self.right)

    def __str__(self) -> str:
        return f"{_WORDS[self.right]} {self.kind} {self.name!r}" if self.name else "do this: only administrators may"


_WORDS = {Right.PUB: "send to", Right.SUB: "consume from", Right.ANY: "look at"}
ADMINISTRATOR = Need("topic", "")


def needs(request: Command, topic_at: TopicAt) -> Iterator[Need]:
    """Everything that must be allowed; a `LaneError` if the request cannot be read."""
    find = _NEEDS.get(request.code)
    if find is not None:
        return find(request)
    by_position = _BY_POSITION.get(request.code)
    if by_position is not None:
        return by_position(request, topic_at)
    return iter(() if request.code in _OPEN else (ADMINISTRATOR,))


def _send_v1(request: Command) -> Iterator[Need]:
    yield Need("topic", SendHeader.from_ext_v1(request.ext).topic, Right.PUB)


def _send_v2(request: Command) -> Iterator[Need]:
    yield Need("topic", SendHeader.from_ext_v2(request.ext).topic, Right.PUB)


def _topic_and_group(request: Command) -> Iterator[Need]:
    """Pulls, offsets and parking: all of them name both in the same fields."""
    yield Need("topic", request.ext.get("topic", ""))
    yield Need("group", request.ext.get("consumerGroup", ""))


def _group(request: Command) -> Iterator[Need]:
    yield Need("group", request.ext.get("consumerGroup", ""))


def _bounds(request: Command) -> Iterator[Need]:
    yield Need("topic", request.ext.get("topic", ""), Right.ANY)


def _described_topic(request: Command) -> Iterator[Need]:
    yield Need("topic", TopicHeader.from_ext(request.ext).topic, Right.ANY)


def _heartbeat(request: Command) -> Iterator[Need]:
    for data in HeartbeatData.decode(request.body).consumer_data_set:
        yield Need("group", data.group_name)
        yield from (Need("topic", each.topic) for each in data.subscription_data_set)


def _unregister(request: Command) -> Iterator[Need]:
    group = UnregisterHeader.from_ext(request.ext).consumer_group
    if group:
        yield Need("group", group)


def _lock(request: Command) -> Iterator[Need]:
    yield Need("group", LockRequest.decode(request.body).consumer_group)


def _parked(request: Command) -> Iterator[Need]:
    yield Need("group", LaneBody.decode(request.body).group)


def _search(request: Command) -> Iterator[Need]:
    yield Need("topic", QueryMessageHeader.from_ext(request.ext).topic)


def _sent_back(request: Command, topic_at: TopicAt) -> Iterator[Need]:
    """The message is named by its place in the log: without a look at it, anybody could have any message copied."""
    header = SendBackHeader.from_ext(request.ext)
    yield Need("group", header.group)
    yield Need("topic", topic_at(header.offset))


def _viewed(request: Command, topic_at: TopicAt) -> Iterator[Need]:
    yield Need("topic", topic_at(ViewMessageHeader.from_ext(request.ext).offset))


_NEEDS: dict[int, Callable[[Command], Iterator[Need]]] = {
    RequestCode.SEND_MESSAGE: _send_v1,
    RequestCode.SEND_MESSAGE_V2: _send_v2,
    RequestCode.SEND_BATCH_MESSAGE: _send_v2,
    RequestCode.PULL_MESSAGE: _topic_and_group,
    RequestCode.LITE_PULL_MESSAGE: _topic_and_group,
    RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group,
    RequestCode.UPDATE_CONSUMER_OFFSET: _topic_and_group,
    RequestCode.LANE_PARK: _topic_and_group,
    RequestCode.LANE_PARK_NEXT: _topic_and_group,
    RequestCode.LANE_PARKED: _parked,
    RequestCode.LANE_PARKED_SHOW: _parked,
    RequestCode.LANE_PARKED_REDRIVE: _parked,
    RequestCode.LANE_PARKED_DISCARD: _parked,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _lock,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group,
    RequestCode.GET_CONSUME_STATS: _group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _group,
    RequestCode.GET_MIN_OFFSET: _bounds,
    RequestCode.GET_MAX_OFFSET: _bounds,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _bounds,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _bounds,
    RequestCode.GET_TOPIC_STATS_INFO: _described_topic,
    RequestCode.GET_TOPIC_CONFIG: _described_topic,
    RequestCode.QUERY_MESSAGE: _search,
}

_BY_POSITION: dict[int, Callable[[Command, TopicAt], Iterator[Need]]] = {
    RequestCode.CONSUMER_SEND_MSG_BACK: _sent_back,
    RequestCode.VIEW_MESSAGE_BY_ID: _viewed,
}

_OPEN = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_KV_CONFIG,
        RequestCode.CHECK_CLIENT_CONFIG,
    }
)
"""For every user: where things are, and what they are called. RocketMQ's name servers tell it to anybody."""
