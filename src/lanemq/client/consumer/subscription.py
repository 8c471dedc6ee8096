"""Where a topic's messages are worked on: one handler with its lanes and its workers.

`StationPlan` is what the user declared; `Station` is it at work.
"""

from dataclasses import dataclass, field

from lanemq.client.consumer.async_scheduler import AsyncScheduler
from lanemq.client.consumer.attempts import AsyncBatchHandler, BatchHandler
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.tag_filter import TagFilter, tag_filter
from lanemq.clock import Clock
from lanemq.core.consuming.retry_policy import FailurePolicy, HoldKey
from lanemq.core.consuming.runs import LaneOptions, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.errors import InvalidOption
from lanemq.model.names import check_topic

DEFAULT_WORKERS = 20
"""RocketMQ's DefaultMQPushConsumer, consumeThreadMin and consumeThreadMax."""

RUN_LIMIT = 32
"""Messages a worker takes at once of one lane; more would save little and wait longer before a hand-over."""


HOLD_KEY = HoldKey()


@dataclass(frozen=True, slots=True, kw_only=True)
class StationPlan:
    """One subscription and what to do with its messages; checked when made."""

    topic: str
    handler: BatchHandler | None = None
    """For worker threads. Neither this nor `async_attempt`: somebody takes the turns by hand (iterators)."""
    async_handler: AsyncBatchHandler | None = None
    tags: str = "*"
    order: Order = Order.KEY
    policy: FailurePolicy = HOLD_KEY
    workers: int = DEFAULT_WORKERS
    """Lanes that run at once, at most."""
    batch_size: int = 1
    run_limit: int = RUN_LIMIT
    auto_commit: bool = True
    filter: TagFilter = field(init=False)

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if self.workers < 1:
            raise InvalidOption(f"workers={self.workers} for topic {self.topic!r}: at least one is needed")
        object.__setattr__(self, "filter", tag_filter(self.tags))

    @property
    def ordered(self) -> bool:
        """Whether messages of the topic need a lease (RocketMQ: consumeOrderly)."""
        return self.order is not Order.NONE

    @property
    def lanes(self) -> LaneOptions:
        return LaneOptions(
            policy=self.policy, batch_size=self.batch_size, run_limit=self.run_limit, auto_commit=self.auto_commit
        )


class Station:
    """A plan with its board."""

    def __init__(self, plan: StationPlan, clock: Clock, shared: Scheduler | None = None) -> None:
        self.plan = plan
        self.scheduler = shared or make_scheduler(plan, clock)


def make_scheduler(plan: StationPlan, clock: Clock) -> Scheduler:
    scheduler = AsyncScheduler if plan.async_handler is not None else Scheduler
    return scheduler(LaneScheduler(plan.lanes), plan.order, clock)
