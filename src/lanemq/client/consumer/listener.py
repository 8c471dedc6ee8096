"""What a handler can answer.

Return means done, raise means try again by the policy. Three exceptions say something else and are no errors.
Users of RocketMQ find its statuses and contexts here under their own names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from lanemq.client.message import Message
from lanemq.model.queue import MessageQueue


class HandlerVerdict(Exception):
    """Raised by a handler to decide about its message."""


class Retry(HandlerVerdict):
    """Not now: the same message again after `after` seconds, nothing of its lane before it."""

    def __init__(self, after: float | None = None) -> None:
        self.after = after
        super().__init__("try again" if after is None else f"try again after {after:g} s")


class Skip(HandlerVerdict):
    """Done, although nothing was done; the lane goes on."""


class ToDeadLetter(HandlerVerdict):
    """Set aside in the group's dead letters at once, with the reason; the lane goes on behind it."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        super().__init__(why)


class OrderlyStatus(Enum):
    """What an orderly listener returns (RocketMQ's ConsumeOrderlyStatus)."""

    SUCCESS = "success"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "suspend"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class ConcurrentlyStatus(Enum):
    """What a concurrent listener returns (RocketMQ's ConsumeConcurrentlyStatus)."""

    CONSUME_SUCCESS = "success"
    RECONSUME_LATER = "later"


@dataclass(slots=True)
class OrderlyContext:
    """What an orderly listener may set (RocketMQ's ConsumeOrderlyContext)."""

    message_queue: MessageQueue
    auto_commit: bool = True
    """False: SUCCESS keeps the messages uncommitted until COMMIT, and ROLLBACK repeats them all."""
    suspend_current_queue_time_millis: int = -1
    """How long SUSPEND waits; -1 takes the consumer's setting."""


@dataclass(slots=True)
class ConcurrentlyContext:
    """What a concurrent listener may set (RocketMQ's ConsumeConcurrentlyContext)."""

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    """0: the broker chooses; -1: straight to the dead letters; above: that delay level."""
    ack_index: int = field(default=2**31 - 1)
    """The last message of the batch that succeeded; those behind it are tried again."""


OrderlyListener: TypeAlias = Callable[[Sequence[Message], OrderlyContext], OrderlyStatus | None]
ConcurrentListener: TypeAlias = Callable[[Sequence[Message], ConcurrentlyContext], ConcurrentlyStatus | None]
