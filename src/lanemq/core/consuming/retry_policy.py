"""What happens to a message whose handler failed.

A policy is data: it says who waits (the key or the whole queue), how long, how often, and what follows
when the retries are used up. `after` turns policy, count and verdict into one next step and has an answer
for every count.

Only `DeadLetter` and `SendBack` let successors pass a failed message. A hold that runs out of retries
parks: the lane is set aside, with everything behind it, until a person resumes, redrives or discards it.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lanemq.core.backoff import Backoff
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis, to_millis

RETRY_FOREVER: Final = -1
"""RocketMQ's default for orderly listeners (ConsumeMessageOrderlyService: -1 means Integer.MAX_VALUE)."""
ROCKETMQ_CONCURRENT_RETRIES: Final = 16
"""RocketMQ's default for concurrent listeners (DefaultMQPushConsumerImpl)."""
SUSPEND_DEFAULT: Final = Millis(1_000)
"""RocketMQ's DefaultMQPushConsumer, suspendCurrentQueueTimeMillis."""
SUSPEND_LEAST: Final = Millis(10)
SUSPEND_MOST: Final = Millis(30_000)
"""RocketMQ's ConsumeMessageOrderlyService clamps every suspension to these."""
SEND_BACK_RETRY: Final = Millis(5_000)
"""RocketMQ's ConsumeMessageConcurrentlyService: the wait after a message could not be sent back."""


def _check_retries(retries: int) -> None:
    if retries < RETRY_FOREVER:
        raise InvalidOption(f"retries={retries} has no meaning: use 0 or more, or RETRY_FOREVER (-1)")


@dataclass(frozen=True, slots=True)
class Park:
    """Retries are used up and nothing may pass: the lane is set aside, in order, until a person decides.

    At the broker it is durable and the queue's commit passes it. With `at_broker=False`, and wherever a broker cannot
    keep it (Apache RocketMQ), it stays in the member's memory: the commit waits for it, and a restart tries again.
    """

    at_broker: bool = True


PARK: Final = Park()


@dataclass(frozen=True, slots=True)
class HoldQueue:
    """RocketMQ's suspend: the whole queue waits, whatever the key of the failed message."""

    retries: int = RETRY_FOREVER
    suspend: float = SUSPEND_DEFAULT / 1000

    def __post_init__(self) -> None:
        _check_retries(self.retries)


@dataclass(frozen=True, slots=True)
class HoldKey:
    """Only the failed message's lane waits; other keys of the queue go on. When its retries are used up: `then`."""

    retries: int = 16
    backoff: Backoff = field(default_factory=Backoff)
    then: Park = PARK

    def __post_init__(self) -> None:
        _check_retries(self.retries)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Hold as `hold` says; then move the message to the dead-letter topic and let its successors pass.

    `skip=True` must be written out, because it gives up the order of the key. With `HoldQueue` this is
    RocketMQ's orderly listener with a maximum of reconsume times.
    """

    skip: bool
    hold: HoldQueue | HoldKey = HoldKey()

    def __post_init__(self) -> None:
        if not self.skip:
            raise InvalidOption(
                "DeadLetter lets later messages of the key pass the failed one: say so with skip=True, "
                "or use HoldKey to keep them waiting"
            )


@dataclass(frozen=True, slots=True)
class SendBack:
    """RocketMQ's concurrent retry: the broker counts to `retries`, and delivers again later or dead-letters."""

    retry_locally_after: float = SEND_BACK_RETRY / 1000
    retries: int = ROCKETMQ_CONCURRENT_RETRIES


FailurePolicy: TypeAlias = HoldQueue | HoldKey | DeadLetter | SendBack


@dataclass(frozen=True, slots=True)
class Again:
    """Run it again after `delay`; `whole_queue` says who waits."""

    delay: Millis
    whole_queue: bool


@dataclass(frozen=True, slots=True)
class Give:
    """Hand it to the broker (retry or dead-letter topic)."""


NextStep: TypeAlias = Again | Give | Park
GIVE: Final = Give()
DEFAULT_POLICY: Final = HoldKey()


def after(policy: FailurePolicy, count: int, *, asked: Millis | None = None, hopeless: bool = False) -> NextStep:
    """The next step for a message that already failed `count` times before this failure.

    `asked` is the delay a listener requested with its suspend; it replaces the policy's own, within the
    clamp. `hopeless` says that another attempt would end the same way: retries count as used up, unless the policy
    has no end (RETRY_FOREVER), where the message waits for a handler that can take it.
    """
    match policy:
        case SendBack():
            return GIVE
        case DeadLetter(hold=hold):
            return again(hold, count, asked=asked) if _may_retry(hold, count, hopeless) else GIVE
        case _:
            return again(policy, count, asked=asked) if _may_retry(policy, count, hopeless) else PARK


def again(policy: FailurePolicy, count: int, *, asked: Millis | None = None) -> Again:
    """The wait before another attempt, whether or not the policy still grants one."""
    hold = policy.hold if isinstance(policy, DeadLetter) else policy
    match hold:
        case HoldQueue(suspend=suspend):
            return Again(clamp_suspend(to_millis(suspend) if asked is None else asked), whole_queue=True)
        case HoldKey(backoff=backoff):
            own = backoff.delay(count + 1) if asked is None else clamp_suspend(asked)
            return Again(own, whole_queue=False)
        case SendBack(retry_locally_after=delay):
            return Again(to_millis(delay), whole_queue=False)


def clamp_suspend(delay: int) -> Millis:
    """RocketMQ's bounds; -1, its word for "not given", means the default."""
    if delay == -1:
        return SUSPEND_DEFAULT
    return Millis(max(SUSPEND_LEAST, min(SUSPEND_MOST, delay)))


def delay_level(count: int) -> int:
    """The delay level of a message sent back after `count` failures; RocketMQ's SendMessageProcessor."""
    return 3 + count


def _may_retry(hold: HoldQueue | HoldKey, count: int, hopeless: bool) -> bool:
    return hold.retries == RETRY_FOREVER or (count < hold.retries and not hopeless)
