"""RocketMQ's push consumer, with RocketMQ's names.

consumer = PushConsumer("localhost:9876", group="billing")
consumer.subscribe("orders", "paid || shipped")
consumer.register_orderly(listener)
consumer.start()
"""

import sys
from functools import partial
from typing import Unpack

from lanemq.client.consumer.engine import EngineThread, without_resources
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.options import ConsumerSettings, StartFrom, consumer_options
from lanemq.client.consumer.turns.handler import (
    BatchHandler,
    ConcurrentHandler,
    ConcurrentListener,
    OrderlyHandler,
    OrderlyListener,
)
from lanemq.client.consumer.turns.subscription import DEFAULT_WORKERS, Subscription
from lanemq.client.ending import close_here_or_aside
from lanemq.core.consuming.retry_policy import (
    RETRY_FOREVER,
    SUSPEND_DEFAULT,
    DeadLetter,
    FailurePolicy,
    HoldQueue,
    SendBack,
    clamp_suspend,
)
from lanemq.core.consuming.runs import Order
from lanemq.model.checks import check_text, check_whole
from lanemq.model.errors import Closed, InvalidOption
from lanemq.model.names import check_topic
from lanemq.net.address import Servers

MAX_RECONSUME = 16


class PushConsumer:
    """One member of a group with one listener: an orderly one gets its messages in order, a concurrent one does not."""

    def __init__(
        self,
        servers: Servers,
        *,
        group: str,
        consume_threads: int = DEFAULT_WORKERS,
        consume_message_batch_max_size: int = 1,
        max_reconsume_times: int | None = None,
        suspend_current_queue_time_millis: int = SUSPEND_DEFAULT,
        manual_commit: bool = False,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        """Takes RocketMQ's options beside `ConsumerSettings`.

        `max_reconsume_times` is the number of retries before a message becomes a dead letter. -1, RocketMQ's default,
        retries endlessly with an orderly listener and means 16 with a concurrent one; None is -1 with
        `compat="rocketmq"` and 16 otherwise.
        """
        check_whole("consume_threads", consume_threads, 1)
        check_whole("consume_message_batch_max_size", consume_message_batch_max_size, 1)
        check_whole("suspend_current_queue_time_millis", suspend_current_queue_time_millis, -1)
        if max_reconsume_times is not None:
            check_whole("max_reconsume_times", max_reconsume_times, RETRY_FOREVER)
        settings.setdefault("start", StartFrom.LAST)
        self.options = consumer_options(servers, group, **settings)
        self._threads = consume_threads
        self._batch_size = consume_message_batch_max_size
        self._max_reconsume = max_reconsume_times
        self._suspend = clamp_suspend(suspend_current_queue_time_millis) / 1000
        self._manual = manual_commit
        self._topics: dict[str, str] = {}
        self._handler: BatchHandler | None = None
        self._thread: EngineThread | None = None

    def subscribe(self, topic: str, tags: str = "*") -> None:
        self._not_started()
        check_text("tags", tags)
        self._topics[check_topic(topic)] = tags

    def register_orderly(self, listener: OrderlyListener) -> None:
        """Registers a listener that gets the messages of each queue in order, one at a time."""
        self._not_started()
        self._handler = OrderlyHandler(listener, manual=self._manual)

    def register_concurrent(self, listener: ConcurrentListener) -> None:
        """Registers a listener that gets messages in any order, as many at once as there are threads."""
        self._not_started()
        self._handler = ConcurrentHandler(listener)

    @property
    def consume_orderly(self) -> bool:
        return isinstance(self._handler, OrderlyHandler)

    def start(self) -> None:
        """Starts consuming; a second start is refused. On the main thread, SIGTERM shuts down first."""
        self._not_started()
        if self._handler is None:
            raise InvalidOption("no listener: call register_orderly or register_concurrent first")
        thread = EngineThread(
            self.options, without_resources([self._subscription(topic, tags) for topic, tags in self._topics.items()])
        )
        self._thread = thread
        thread.start(finish_on_sigterm=True)

    def shutdown(self, *, now: bool = False) -> None:
        """Lets running listeners finish, commits, releases the queues and leaves the group.

        Called by a listener, or by a signal handler that has interrupted a call of a client, it returns at once.
        """
        if self._thread is not None:
            close_here_or_aside(partial(self._thread.stop, now=now), sys._getframe(1))  # noqa: SLF001

    def snapshot(self) -> ConsumerSnapshot:
        if self._thread is None:
            raise Closed("this consumer is not running: start it first")
        return take_snapshot(self._thread.engine)

    def _subscription(self, topic: str, tags: str) -> Subscription:
        return Subscription(
            topic=topic,
            tags=tags,
            handler=self._handler,
            order=Order.QUEUE if self.consume_orderly else Order.NONE,
            policy=self._policy(),
            workers=self._threads,
            batch_size=self._batch_size,
            auto_commit=not (self._manual and self.consume_orderly),
        )

    def _policy(self) -> FailurePolicy:
        retries = self._max_reconsume
        if not self.consume_orderly:
            return SendBack() if retries in (None, RETRY_FOREVER) else SendBack(retries=retries)
        if retries is None:
            retries = RETRY_FOREVER if self.options.compat == "rocketmq" else MAX_RECONSUME
        hold = HoldQueue(retries=retries, suspend=self._suspend)
        return hold if retries == RETRY_FOREVER else DeadLetter(skip=True, hold=hold)

    def _not_started(self) -> None:
        if self._thread is not None:
            raise Closed("this consumer was started already: subscribe and register before the start")
