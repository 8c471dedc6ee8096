"""Whether to pull more of a queue now.

A consumer that is slower than the broker must not fill its memory. Before each pull the queue's cache is
compared with three limits; over any of them the pull waits a moment. The check is made before the pull,
so a cache exceeds its limit by at most one pulled batch.
"""

from dataclasses import dataclass
from enum import Enum

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis

CACHE_FULL_WAIT = Millis(50)
"""RocketMQ's DefaultMQPushConsumerImpl, PULL_TIME_DELAY_MILLS_WHEN_CACHE_FLOW_CONTROL."""


@dataclass(frozen=True, slots=True)
class Cached:
    """What a queue has in memory; `span` reaches from its first unfinished to its last known offset."""

    count: int
    bytes: int
    span: int


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Per queue. Defaults are those of RocketMQ's DefaultMQPushConsumer."""

    messages: int = 1_000
    bytes: int = 100 * 1024 * 1024
    span: int = 2_000

    def __post_init__(self) -> None:
        wrong = [name for name in ("messages", "bytes", "span") if getattr(self, name) < 1]
        if wrong:
            raise InvalidOption(f"flow limit {', '.join(wrong)} must be at least 1, or nothing is ever pulled")


class Full(Enum):
    """Which limit is exceeded."""

    MESSAGES = "too many messages cached"
    BYTES = "too many bytes cached"
    SPAN = "one unfinished message lies too far behind the newest"


@dataclass(frozen=True, slots=True)
class PullNow:
    """Nothing is over its limit."""


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Ask again after `delay`."""

    delay: Millis
    reason: Full


PULL_NOW = PullNow()


def verdict(cached: Cached, limits: FlowLimits, *, out_of_order: bool) -> PullNow | WaitFor:
    """`out_of_order`: messages may finish before their predecessors (key lanes, concurrent): span counts.

    A queue consumed as one lane has no finished messages above an unfinished one; its span is only a count of
    filtered messages, and waiting for it to shrink would stall the queue.
    """
    if cached.count > limits.messages:
        return WaitFor(CACHE_FULL_WAIT, Full.MESSAGES)
    if cached.bytes > limits.bytes:
        return WaitFor(CACHE_FULL_WAIT, Full.BYTES)
    if out_of_order and cached.span > limits.span:
        return WaitFor(CACHE_FULL_WAIT, Full.SPAN)
    return PULL_NOW
