"""Which topic and group names are legal, and the names that carry a meaning.

Every name that reaches the broker, the log or a file path has passed `check_topic` or `check_group`.
"""

import re

from lanemq.model.errors import InvalidName, InvalidOption
from lanemq.model.wording import shown

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
DEFAULT_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
"""Topics in which clients with message trace store what they did; the second form is followed by a region."""
DEFAULT_BROKER_NAME = "lanemq"
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of RocketMQ's own tools. Every Apache broker has it, also one that creates no groups by itself."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
PULL_GROUP_PREFIX = "%LANEMQ%"
"""Begins the names under which coordinated groups pull: their own names are disabled at Apache's brokers."""

MAX_TOPIC_CHARS = 127
"""RocketMQ stores a topic's length in a signed byte."""
MAX_GROUP_CHARS = 120
"""RocketMQ allows 255, but a group's retry topic (`%RETRY%` + group) must itself be a legal topic."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")

NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics that belong to the broker itself; a client that sends to them is refused."""

_INTERNAL_GROUPS = frozenset(
    {
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)
"""Groups that every Apache broker creates at its start (RocketMQ: `SubscriptionGroupManager.init`)."""


def check_topic(name: str) -> str:
    """The name itself if it is a legal topic name, else `InvalidName`."""
    return _check("topic", name, MAX_TOPIC_CHARS)


def check_group(name: str) -> str:
    """The name itself if it is a legal group name, else `InvalidName`."""
    return _check("group", name, MAX_GROUP_CHARS)


def retry_topic(group: str) -> str:
    """Where a group's messages wait for another attempt."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Where a group's messages go when their attempts are used up."""
    return DEAD_LETTER_PREFIX + group


def pull_group(group: str) -> str:
    """The name under which members of a coordinated group pull from Apache's brokers."""
    return PULL_GROUP_PREFIX + group


def is_internal_group(name: str) -> bool:
    """Whether the group belongs to an Apache broker itself, marks discarded dead letters, or only names pulls."""
    return name in _INTERNAL_GROUPS or name.startswith((SYSTEM_GROUP_PREFIX, DEAD_LETTER_PREFIX, PULL_GROUP_PREFIX))


def reply_topic(cluster: str) -> str:
    """Where replies to requests are sent (RocketMQ: `MixAll.getReplyTopic`)."""
    return f"{cluster}_REPLY_TOPIC"


def _check(kind: str, name: str, limit: int) -> str:
    if not isinstance(name, str):
        raise InvalidOption(f"{kind}={shown(name)} must be text, the name of a {kind}")
    if not name or len(name) > limit or _LEGAL.fullmatch(name) is None:
        raise InvalidName(kind, name, limit)
    return name
