"""Decides whether to pull more messages of a queue now.

A consumer that is slower than the broker must not fill its memory. Before each pull, the queue's cache is compared with
three limits; above any of them the pull waits. The cache exceeds its limit by at most one pulled batch.
"""

from dataclasses import dataclass
from enum import Enum

from lanemq.model.checks import check_kind
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

CACHE_FULL_WAIT = Millis(50)
"""RocketMQ's DefaultMQPushConsumerImpl, PULL_TIME_DELAY_MILLS_WHEN_CACHE_FLOW_CONTROL."""


@dataclass(frozen=True, slots=True)
class Cached:
    """The cached messages of a queue; `span` reaches from its first unfinished offset to its last known one."""

    count: int
    bytes: int
    span: int


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Cache limits per queue. The defaults are those of RocketMQ's DefaultMQPushConsumer."""

    messages: int = 1_000
    """Small: workers wait for pulls. Large: memory, and more that is repeated after a crash."""
    bytes: int = 100 * 1024 * 1024
    """Size of the messages as stored. Small: workers wait for pulls of large messages. Large: memory."""
    span: int = 2_000
    """Distance from the first unfinished offset to the last known one. Small: other keys soon wait for a held key."""

    def __post_init__(self) -> None:
        for name in ("messages", "bytes", "span"):
            check_kind(name, getattr(self, name), int, "a whole number, at least 1")
        wrong = [name for name in ("messages", "bytes", "span") if getattr(self, name) < 1]
        if wrong:
            raise InvalidOption(f"flow limit {', '.join(wrong)} must be at least 1, or nothing is ever pulled")


class Full(Enum):
    """Which limit is exceeded."""

    MESSAGES = "too many messages cached"
    BYTES = "too many bytes cached"
    SPAN = "the first unfinished message is too far behind the newest"


@dataclass(frozen=True, slots=True)
class PullNow:
    """The cache is within its limits."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """The cache is full; ask again after `delay`."""

    delay: Millis
    reason: Full


PULL_NOW = PullNow()


def verdict(cached: Cached, limits: FlowLimits, *, out_of_order: bool) -> PullNow | WaitFor:
    """Compares a cache with its limits.

    `out_of_order` says that messages may finish before their predecessors (lanes by key, concurrent). Only then does
    the span count: in a queue that is one lane it only counts filtered messages, and waiting for it would stall the
    queue.
    """
    if cached.count > limits.messages:
        return WaitFor(CACHE_FULL_WAIT, Full.MESSAGES)
    if cached.bytes > limits.bytes:
        return WaitFor(CACHE_FULL_WAIT, Full.BYTES)
    if out_of_order and cached.span > limits.span:
        return WaitFor(CACHE_FULL_WAIT, Full.SPAN)
    return PULL_NOW
