"""What happens to a message whose handler failed.

A policy is data: what waits (the key or the whole queue), how long, how often, and what follows when the retries are
used up. `next_step` computes what follows from the policy and the number of failures.

Only `DeadLetter` and `SendBack` let successors pass a failed message. When `HoldKey` or `HoldQueue` runs out of
retries, the lane is parked with everything behind it, until an operator resumes, redrives or discards it.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lanemq.core.backoff import Backoff
from lanemq.model.checks import check_flag, check_kind, seconds
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis, Seconds, to_millis

RETRY_FOREVER: Final = -1
"""RocketMQ's default for orderly listeners (ConsumeMessageOrderlyService: -1 means Integer.MAX_VALUE)."""
ROCKETMQ_CONCURRENT_RETRIES: Final = 16
"""RocketMQ's default for concurrent listeners (DefaultMQPushConsumerImpl)."""
SUSPEND_DEFAULT: Final = Millis(1_000)
"""RocketMQ's DefaultMQPushConsumer, suspendCurrentQueueTimeMillis."""
MIN_SUSPEND: Final = Millis(10)
MAX_SUSPEND: Final = Millis(30_000)
"""RocketMQ's ConsumeMessageOrderlyService limits every suspension to this range. A `Retry(after=...)` may be longer."""
SEND_BACK_RETRY: Final = Millis(5_000)
"""RocketMQ's ConsumeMessageConcurrentlyService: the wait after a message could not be sent back to the broker."""


def _check_retries(retries: int) -> None:
    if type(retries) is not int or retries < RETRY_FOREVER:
        raise InvalidOption(f"retries={retries!r} has no meaning: use 0 or more, or RETRY_FOREVER (-1)")


@dataclass(frozen=True, slots=True)
class Park:
    """Parks the lane when its retries are used up, with everything behind it, until an operator decides.

    At the broker a parked lane is durable, and the queue's commit passes it. With `at_broker=False`, and with a broker
    that cannot keep it (Apache RocketMQ), the lane stays in the member's memory: the commit waits for it, and a restart
    tries it again.
    """

    at_broker: bool = True

    def __post_init__(self) -> None:
        check_flag("at_broker", self.at_broker)


PARK: Final = Park()

KEPT_MESSAGES: Final = 64
"""Default of `HoldKey.keep`."""


@dataclass(frozen=True, slots=True)
class HoldQueue:
    """Holds the whole queue after a failure, whatever the key of the failed message (RocketMQ's suspend)."""

    retries: int = RETRY_FOREVER
    """Attempts after the first one, before the queue is parked; -1 never parks it."""
    suspend: Seconds = SUSPEND_DEFAULT / 1000
    """Seconds before each retry, limited to 0.01 to 30 as in RocketMQ."""

    def __post_init__(self) -> None:
        _check_retries(self.retries)
        seconds("suspend", self.suspend)


@dataclass(frozen=True, slots=True)
class HoldKey:
    """Holds the lane of the failed message; other keys of the queue continue. When the retries are used up: `then`."""

    retries: int = 16
    """Attempts after the first one; -1 never gives up. Few: a lane is parked for a problem that lasts a minute."""
    backoff: Backoff = field(default_factory=Backoff)
    then: Park = PARK
    keep: int = KEPT_MESSAGES
    """Messages of a held lane that wait in the member; with more, the lane is set aside at the broker. Small: a short
    failure costs requests. Large: more messages in memory, and more finished ranges above the committed offset."""

    def __post_init__(self) -> None:
        _check_retries(self.retries)
        check_kind("backoff", self.backoff, Backoff, "Backoff(first=..., factor=..., max=...)")
        check_kind("then", self.then, Park, "Park(...)")
        if type(self.keep) is not int or self.keep < 1:
            raise InvalidOption(f"keep={self.keep!r} must be at least 1: the failed message itself waits in the member")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Retries as `hold` says, then moves the message to the dead letters and lets its successors pass.

    `skip=True` must be written out, because it gives up the order of the key. With `HoldQueue` this is RocketMQ's
    orderly listener with a maximum of reconsume times.
    """

    skip: bool
    hold: HoldQueue | HoldKey = HoldKey()

    def __post_init__(self) -> None:
        check_kind("skip", self.skip, bool, "True")
        check_kind("hold", self.hold, (HoldKey, HoldQueue), "HoldKey(...) or HoldQueue(...)")
        if not self.skip:
            raise InvalidOption(
                "DeadLetter lets later messages of the key pass the failed one: say so with skip=True, "
                "or use HoldKey to keep them waiting"
            )


@dataclass(frozen=True, slots=True)
class SendBack:
    """Returns the message to the broker, which delivers it again later; after `retries` it becomes a dead letter."""

    retry_locally_after: Seconds = SEND_BACK_RETRY / 1000
    """Seconds before the next attempt here, if the broker did not take the message back."""
    retries: int = ROCKETMQ_CONCURRENT_RETRIES


FailurePolicy: TypeAlias = HoldQueue | HoldKey | DeadLetter | SendBack


@dataclass(frozen=True, slots=True)
class Again:
    """Next step: run the message again after `delay`; `whole_queue` says what waits until then."""

    delay: Millis
    whole_queue: bool


@dataclass(frozen=True, slots=True)
class ToBroker:
    """Next step: send the message back to the broker, which puts it into the group's retry or dead-letter topic."""


NextStep: TypeAlias = Again | ToBroker | Park
TO_BROKER: Final = ToBroker()
DEFAULT_POLICY: Final = HoldKey()


def next_step(policy: FailurePolicy, count: int, *, delay: Millis | None = None, hopeless: bool = False) -> NextStep:
    """The next step for a message that had failed `count` times before this failure.

    `delay` is what the handler asked for: it replaces the policy's own, and is at least `MIN_SUSPEND`.
    `hopeless` means that another attempt would fail the same way: the retries count as used up, except with
    RETRY_FOREVER, where the message waits for a handler that can process it.
    """
    match policy:
        case SendBack():
            return TO_BROKER
        case DeadLetter(hold=hold):
            return next_attempt(hold, count, delay=delay) if _may_retry(hold, count, hopeless) else TO_BROKER
        case _:
            return next_attempt(policy, count, delay=delay) if _may_retry(policy, count, hopeless) else PARK


def next_attempt(policy: FailurePolicy, count: int, *, delay: Millis | None = None) -> Again:
    """The wait before another attempt, even if the policy allows no more."""
    hold = policy.hold if isinstance(policy, DeadLetter) else policy
    if delay is not None:
        return Again(max(delay, MIN_SUSPEND), whole_queue=isinstance(hold, HoldQueue))
    match hold:
        case HoldQueue(suspend=suspend):
            return Again(clamp_suspend(to_millis(suspend)), whole_queue=True)
        case HoldKey(backoff=backoff):
            return Again(backoff.delay(count + 1), whole_queue=False)
        case SendBack(retry_locally_after=seconds):
            return Again(to_millis(seconds), whole_queue=False)


def clamp_suspend(delay: int) -> Millis:
    """Limits a suspension to RocketMQ's range; -1, its value for "not given", means the default."""
    if delay == -1:
        return SUSPEND_DEFAULT
    return Millis(max(MIN_SUSPEND, min(MAX_SUSPEND, delay)))


def delay_level(count: int) -> int:
    """The delay level of a message that is sent back after `count` failures (RocketMQ's SendMessageProcessor)."""
    return 3 + count


def _may_retry(hold: HoldQueue | HoldKey, count: int, hopeless: bool) -> bool:
    return hold.retries == RETRY_FOREVER or (count < hold.retries and not hopeless)
