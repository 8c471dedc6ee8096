"""Messages by iteration, for programs that want to drive.

    with Consumer("localhost:9876", group="audit", topics=["orders"]) as consumer:
        for message in consumer:
            ...
            consumer.done(message)

Messages of a key come in order: the next one only after `done` (or `dead`) of the one before; `retry` brings the
same one again. Messages of other keys may be taken meanwhile. SIGTERM ends the iteration after the present message,
and `close` commits and unlocks.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Unpack

from lanemq.client.consumer.engine import EngineThread
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.open_turns import Undecided, subscriptions_for
from lanemq.client.consumer.options import ConsumerSettings, consumer_options
from lanemq.client.consumer.signals import TERMINATION
from lanemq.client.consumer.subscription import make_scheduler
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import FailurePolicy
from lanemq.core.consuming.runs import Why
from lanemq.model.errors import Closed


class Consumer:
    """One member of a group. Iterate from one thread; decide about messages from any."""

    def __init__(
        self,
        servers: str,
        *,
        group: str,
        topics: str | Sequence[str],
        tags: str = "*",
        on_fail: FailurePolicy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self.options = consumer_options(servers, group, **settings)
        subscriptions = subscriptions_for(topics, tags, on_fail)
        scheduler = make_scheduler(subscriptions[0], self.options.clock)
        self._runs = Undecided(scheduler, group, self.options.history, self.options.clock)
        self._thread = EngineThread(self.options, subscriptions, scheduler)
        self._term: object | None = None
        self._ending = False

    def start(self) -> None:
        self._thread.start()

    def close(self, *, now: bool = False) -> None:
        """Undecided messages go back and will be delivered again; the rest is committed and handed over."""
        self._runs.abandon()
        try:
            self._thread.stop(now=now)
        finally:
            TERMINATION.forget(self._term)

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in `timeout` seconds, or the consumer was closed.

        Raises what ended the consumer, if nobody asked it to end.
        """
        run = self._runs.scheduler.take_run(timeout)
        if run is None:
            self._thread.check()
            return None
        return self._runs.give_out(run)

    def done(self, message: Message) -> bool:
        """The lane goes on. False: the queue was lost meanwhile, the message will be delivered again."""
        return self._runs.done(message)

    def retry(self, message: Message, after: float | None = None) -> None:
        """The same message again, after `after` seconds or as the failure policy says."""
        self._runs.retry(message, after)

    def dead(self, message: Message, why: str = "") -> bool:
        """To the group's dead letters; the lane goes on behind it. False: the broker did not take it."""
        run, end = self._runs.dead_letter(message, why)
        engine = self._thread.engine
        settling = engine.reporter.report(engine.subscriptions[run.queue.topic], run, end)
        return asyncio.run_coroutine_threadsafe(settling, self._thread.loop).result().why is Why.STOPPED

    def snapshot(self) -> ConsumerSnapshot:
        return take_snapshot(self._thread.engine)

    def __iter__(self) -> Iterator[Message]:
        if self._term is None:
            self._term = TERMINATION.listen(self._end_iteration, again=False)
        return self

    def _end_iteration(self) -> None:
        self._ending = True
        with contextlib.suppress(RuntimeError, Closed):  # ended already
            self._thread.loop.call_soon_threadsafe(self._runs.scheduler.close)

    def __next__(self) -> Message:
        message = None if self._ending else self.poll()
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> "Consumer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
