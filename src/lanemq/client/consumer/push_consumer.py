"""RocketMQ's push consumer under its own names, for those who come from it.

consumer = PushConsumer("localhost:9876", group="billing")
consumer.subscribe("orders", "paid || shipped")
consumer.register_orderly(listener)
consumer.start()
"""

from typing import Unpack

from lanemq.client.consumer.engine import EngineThread
from lanemq.client.consumer.handler import (
    BatchHandler,
    ConcurrentHandler,
    ConcurrentListener,
    OrderlyHandler,
    OrderlyListener,
)
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.options import ConsumerSettings, StartFrom, consumer_options
from lanemq.client.consumer.subscription import DEFAULT_WORKERS, Subscription
from lanemq.core.consuming.retry_policy import (
    RETRY_FOREVER,
    SUSPEND_DEFAULT,
    DeadLetter,
    FailurePolicy,
    HoldQueue,
    SendBack,
)
from lanemq.core.consuming.runs import Order
from lanemq.model.errors import Closed, InvalidOption

MAX_RECONSUME = 16


class PushConsumer:
    """One member of a group with one listener. Which kind is registered decides about order (A19)."""

    def __init__(
        self,
        servers: str,
        *,
        group: str,
        consume_threads: int = DEFAULT_WORKERS,
        consume_message_batch_max_size: int = 1,
        max_reconsume_times: int | None = None,
        suspend_current_queue_time_millis: int = SUSPEND_DEFAULT,
        manual_commit: bool = False,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """`max_reconsume_times`: attempts before a message becomes a dead letter. -1, RocketMQ's own default, never
        gives up with an orderly listener and means 16 with a concurrent one; None is -1 with `compat="rocketmq"`
        and 16 otherwise.
        """
        settings.setdefault("start", StartFrom.LAST)
        self.options = consumer_options(servers, group, **settings)
        self._threads = consume_threads
        self._batch_size = consume_message_batch_max_size
        self._max_reconsume = max_reconsume_times
        self._suspend = suspend_current_queue_time_millis / 1000
        self._manual = manual_commit
        self._topics: dict[str, str] = {}
        self._attempt: BatchHandler | None = None
        self._thread: EngineThread | None = None

    def subscribe(self, topic: str, tags: str = "*") -> None:
        self._not_started()
        self._topics[topic] = tags

    def register_orderly(self, listener: OrderlyListener) -> None:
        """One queue, one message at a time, in order."""
        self._not_started()
        self._attempt = OrderlyHandler(listener, manual=self._manual)

    def register_concurrent(self, listener: ConcurrentListener) -> None:
        """As many at once as there are threads, in any order."""
        self._not_started()
        self._attempt = ConcurrentHandler(listener)

    @property
    def consume_orderly(self) -> bool:
        return isinstance(self._attempt, OrderlyHandler)

    def start(self) -> None:
        """Once; a second start is refused. On the main thread: SIGTERM shuts down before it ends the process."""
        self._not_started()
        if self._attempt is None:
            raise InvalidOption("no listener: call register_orderly or register_concurrent first")
        thread = EngineThread(self.options, [self._plan(topic, tags) for topic, tags in self._topics.items()])
        self._thread = thread
        thread.start(finish_on_sigterm=True)

    def shutdown(self, *, now: bool = False) -> None:
        """Finishes what runs, commits, unlocks, says goodbye."""
        if self._thread is not None:
            self._thread.stop(now=now)

    def snapshot(self) -> ConsumerSnapshot:
        if self._thread is None:
            raise Closed("this consumer is not running: start it first")
        return take_snapshot(self._thread.engine)

    def _plan(self, topic: str, tags: str) -> Subscription:
        return Subscription(
            topic=topic,
            tags=tags,
            handler=self._attempt,
            order=Order.QUEUE if self.consume_orderly else Order.NONE,
            policy=self._policy(),
            workers=self._threads,
            batch_size=self._batch_size,
            auto_commit=not (self._manual and self.consume_orderly),
        )

    def _policy(self) -> FailurePolicy:
        most = self._max_reconsume
        if not self.consume_orderly:
            return SendBack() if most in (None, RETRY_FOREVER) else SendBack(retries=most)
        if most is None:
            most = RETRY_FOREVER if self.options.compat == "rocketmq" else MAX_RECONSUME
        hold = HoldQueue(retries=most, suspend=self._suspend)
        return hold if most == RETRY_FOREVER else DeadLetter(skip=True, hold=hold)

    def _not_started(self) -> None:
        if self._thread is not None:
            raise Closed("this consumer was started already")
