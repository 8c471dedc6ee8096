"""Subscriptions of a consumer: one topic, its handler and how its messages are processed.

The group's retry topic has a subscription of its own: messages that were sent back for another attempt come back there,
whatever topic they were first sent to. The handler sees that topic.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lanemq.client.consumer.tag_filter import ALL_TAGS, TagFilter, tag_filter
from lanemq.client.consumer.turns.async_scheduler import AsyncScheduler
from lanemq.client.consumer.turns.handler import AsyncBatchHandler, BatchHandler, async_by_topic, blocking, by_topic
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.clock import Clock
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey, HoldQueue, SendBack
from lanemq.core.consuming.runs import LaneOptions, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.checks import check_whole
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_topic, retry_topic

DEFAULT_WORKERS = 20
"""RocketMQ's DefaultMQPushConsumer, consumeThreadMin and consumeThreadMax."""

RUN_LIMIT = 32
"""Messages of one lane that a worker takes at once. More saves little and delays a hand-over."""

MAX_RETRY_WORKERS = 4
"""Workers of the retry topic. Retries are few; 20 more threads would be idle."""

HOLD_KEY = HoldKey()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One subscribed topic and what to do with its messages."""

    topic: str
    handler: BatchHandler | None = None
    """For worker threads. If this and `async_handler` are None, the user takes the messages (iterators)."""
    async_handler: AsyncBatchHandler | None = None
    tags: str = ALL_TAGS
    order: Order = Order.KEY
    policy: FailurePolicy = HOLD_KEY
    workers: int = DEFAULT_WORKERS
    """Maximum number of lanes that run at once."""
    batch_size: int = 1
    run_limit: int = RUN_LIMIT
    auto_commit: bool = True
    filter: TagFilter = field(init=False)

    def __post_init__(self) -> None:
        check_topic(self.topic)
        lanes = "workers" if self.order is Order.NONE else "lanes"
        check_whole(lanes, self.workers, 1)
        check_whole("batch_size", self.batch_size, 1)
        object.__setattr__(self, "filter", tag_filter(self.tags))

    @property
    def ordered(self) -> bool:
        """Whether the topic's queues need a lease (RocketMQ: consumeOrderly)."""
        return self.order is not Order.NONE

    @property
    def lanes(self) -> LaneOptions:
        return LaneOptions(
            policy=self.policy,
            order=self.order,
            batch_size=self.batch_size,
            run_limit=self.run_limit,
            auto_commit=self.auto_commit,
        )


def ordered_by(on_fail: FailurePolicy | None) -> tuple[HoldKey | HoldQueue | DeadLetter, Order]:
    """The failure policy of an ordered handler, and what is ordered: the key, or the whole queue."""
    policy = HOLD_KEY if on_fail is None else on_fail
    if isinstance(policy, SendBack):
        raise InvalidOption("on_fail=SendBack(...) gives up the order of the key: use @app.concurrent for that")
    if not isinstance(policy, (HoldKey, HoldQueue, DeadLetter)):
        raise InvalidOption(
            f"on_fail={policy!r} must be HoldKey(...), HoldQueue(...) or DeadLetter(skip=True), such as "
            f"HoldKey(retries=5)"
        )
    hold = policy.hold if isinstance(policy, DeadLetter) else policy
    return policy, Order.QUEUE if isinstance(hold, HoldQueue) else Order.KEY


def retry_subscription(
    group: str, subscriptions: Sequence[Subscription], loop: asyncio.AbstractEventLoop
) -> Subscription:
    """The subscription of the group's retry topic: no stricter in order than the least strict of the group's topics.

    It calls the handler of the topic that a message was first sent to.
    """
    model = next((each for each in subscriptions if each.order is Order.NONE), subscriptions[0])
    retries = replace(
        model, topic=retry_topic(group), tags=ALL_TAGS, batch_size=1, workers=min(MAX_RETRY_WORKERS, model.workers)
    )
    if all(each.async_handler is not None for each in subscriptions):
        coroutines = {each.topic: each.async_handler for each in subscriptions if each.async_handler is not None}
        return replace(retries, handler=None, async_handler=async_by_topic(coroutines))
    handlers = {each.topic: handler for each in subscriptions if (handler := _for_threads(each, loop)) is not None}
    return replace(retries, handler=by_topic(handlers) if handlers else None, async_handler=None)


def _for_threads(subscription: Subscription, loop: asyncio.AbstractEventLoop) -> BatchHandler | None:
    if subscription.async_handler is not None:
        return blocking(subscription.async_handler, loop)
    return subscription.handler


class ActiveSubscription:
    """A subscription of a running consumer, with the scheduler of its messages."""

    def __init__(self, subscription: Subscription, scheduler: Scheduler) -> None:
        self.subscription = subscription
        self.scheduler = scheduler
        self.wanted = True
        """False: the consumer gives the topic up, and forgets it when the last queue has left."""


MakeScheduler: TypeAlias = Callable[[Subscription, Clock], Scheduler]


def make_scheduler(subscription: Subscription, clock: Clock) -> Scheduler:
    scheduler = AsyncScheduler if subscription.async_handler is not None else Scheduler
    return scheduler(LaneScheduler(subscription.lanes), clock)
