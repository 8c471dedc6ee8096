"""The permissions that each request needs.

A request that is not listed needs an administrator, so a new kind of request is closed until it is listed. Fields are
decoded by the same classes as in the handlers: two decoders of one request could differ, and the difference would be a
way around the check. A request that changes a group needs the group itself (`acting_for`), not only a default right.
Every topic that a request names must be allowed.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lanemq.broker.access.users import Right, User
from lanemq.wire.admin_headers import QueryMessageHeader, TopicHeader, ViewMessageHeader
from lanemq.wire.bodies import HeartbeatData, LockRequest
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader, SendBackHeader, SendHeader, UnregisterHeader
from lanemq.wire.lane_bodies import LaneBody
from lanemq.wire.record import PULL_COMMIT_OFFSET

TopicAt = Callable[[int], str]
"""Returns the topic of the message at a log position."""


class Need(NamedTuple):
    """One permission. Without a name it means everything of the kind, which only an administrator may use."""

    kind: str
    name: str
    right: Right = Right.SUB
    own: bool = False
    """Whether the user must list the group: default rights only allow reading."""

    def given_to(self, user: User) -> bool:
        if user.admin or not self.name:
            return user.admin
        if self.kind == "group":
            return user.may_act_for(self.name) if self.own else user.may_use_group(self.name)
        return user.may_use_topic(self.name, self.right)

    def __str__(self) -> str:
        if not self.name:
            return "do this: only administrators may"
        if self.own:
            return f"act for group {self.name!r}: list it with SUB among the user's groups"
        return f"{_WORDS[self.right]} {self.kind} {self.name!r}"


_WORDS = {Right.PUB: "send to", Right.SUB: "consume from", Right.ANY: "look at"}
ADMINISTRATOR = Need("topic", "")


def acting_for(group: str) -> Need:
    """The permission to be a member of a group, or to change its progress or its messages."""
    return Need("group", group, own=True)


def needs(request: Command, topic_at: TopicAt) -> Iterator[Need]:
    """All permissions that a request needs; raises `LaneError` if the request cannot be read."""
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


def _pull(request: Command) -> Iterator[Need]:
    """A pull may contain a commit."""
    header = PullHeader.from_ext(request.ext)
    yield Need("topic", header.topic)
    yield Need("group", header.consumer_group, own=bool(header.sys_flag & PULL_COMMIT_OFFSET))


def _topic_and_group(request: Command) -> Iterator[Need]:
    yield Need("topic", request.ext.get("topic", ""))
    yield Need("group", request.ext.get("consumerGroup", ""))


def _progress(request: Command) -> Iterator[Need]:
    """Commits and parking: their messages are not delivered to the group again."""
    yield Need("topic", request.ext.get("topic", ""))
    yield acting_for(request.ext.get("consumerGroup", ""))


def _group(request: Command) -> Iterator[Need]:
    yield Need("group", request.ext.get("consumerGroup", ""))


def _bounds(request: Command) -> Iterator[Need]:
    yield Need("topic", request.ext.get("topic", ""), Right.ANY)


def _described_topic(request: Command) -> Iterator[Need]:
    yield Need("topic", TopicHeader.from_ext(request.ext).topic, Right.ANY)


def _heartbeat(request: Command) -> Iterator[Need]:
    for data in HeartbeatData.of_request(request.body).consumer_data_set:
        yield acting_for(data.group_name)
        yield from (Need("topic", each.topic) for each in data.subscription_data_set)


def _unregister(request: Command) -> Iterator[Need]:
    group = UnregisterHeader.from_ext(request.ext).consumer_group
    if group:
        yield acting_for(group)


def _lock(request: Command) -> Iterator[Need]:
    body = LockRequest.of_request(request.body)
    yield acting_for(body.consumer_group)
    yield from (Need("topic", topic) for topic in dict.fromkeys(queue.topic for queue in body.mq_set))


def _parked_list(request: Command) -> Iterator[Need]:
    body = LaneBody.of_request(request.body)
    yield acting_for(body.group)
    if body.topic:
        yield Need("topic", body.topic)


def _parked_lane(request: Command) -> Iterator[Need]:
    """The messages of a parked lane belong to the topic."""
    body = LaneBody.of_request(request.body)
    yield acting_for(body.group)
    yield Need("topic", body.topic)


def _search(request: Command) -> Iterator[Need]:
    yield Need("topic", QueryMessageHeader.from_ext(request.ext).topic)


def _sent_back(request: Command, topic_at: TopicAt) -> Iterator[Need]:
    """The request names a message by its log position, so its topic must be read from the log."""
    header = SendBackHeader.from_ext(request.ext)
    yield acting_for(header.group)
    yield Need("topic", topic_at(header.offset))


def _viewed(request: Command, topic_at: TopicAt) -> Iterator[Need]:
    yield Need("topic", topic_at(ViewMessageHeader.from_ext(request.ext).offset))


_NEEDS: dict[int, Callable[[Command], Iterator[Need]]] = {
    RequestCode.SEND_MESSAGE: _send_v1,
    RequestCode.SEND_MESSAGE_V2: _send_v2,
    RequestCode.SEND_BATCH_MESSAGE: _send_v2,
    RequestCode.SEND_REPLY_MESSAGE: _send_v1,
    RequestCode.SEND_REPLY_MESSAGE_V2: _send_v2,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.LITE_PULL_MESSAGE: _pull,
    RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group,
    RequestCode.UPDATE_CONSUMER_OFFSET: _progress,
    RequestCode.LANE_PARK: _progress,
    RequestCode.LANE_PARK_NEXT: _progress,
    RequestCode.LANE_PARKED: _parked_list,
    RequestCode.LANE_PARKED_SHOW: _parked_lane,
    RequestCode.LANE_SEEN: _parked_lane,
    RequestCode.LANE_PARKED_REDRIVE: _parked_lane,
    RequestCode.LANE_PARKED_DISCARD: _parked_lane,
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
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.CHECK_CLIENT_CONFIG,
    }
)
"""Requests open to every user: names and addresses, which RocketMQ's name servers give to any client."""
